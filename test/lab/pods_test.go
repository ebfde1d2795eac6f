package lab

import (
	"archive/tar"
	"io"
	"testing"

	. "github.com/onsi/gomega"
)

// A runtime refuses an image whose config does not list the layer, and cannot start one without an entry point.
func TestTheImageOfThePodsHoldsItsProgram(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	image, err := podImage([]byte("program"))
	g.Expect(err).NotTo(HaveOccurred())

	config, err := image.ConfigFile()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Config.Entrypoint).To(Equal([]string{podProgram}))
	g.Expect(config.Architecture + config.OS).To(Equal("amd64linux"))

	layers, err := image.Layers()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(layers).To(HaveLen(1))

	diffID, err := layers[0].DiffID()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.RootFS.DiffIDs).To(ConsistOf(diffID))

	content, err := layers[0].Uncompressed()
	g.Expect(err).NotTo(HaveOccurred())

	files := tar.NewReader(content)
	header, err := files.Next()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect("/" + header.Name).To(Equal(podProgram))
	g.Expect(header.FileInfo().Mode().Perm()).To(BeEquivalentTo(programMode))
	g.Expect(io.ReadAll(files)).To(BeEquivalentTo("program"))
}
