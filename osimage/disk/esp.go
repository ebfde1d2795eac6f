package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/diskfs/go-diskfs/filesystem/fat32"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	// loaderConfig boots at once and names no default entry: with a default, systemd-boot ignores boot counters.
	loaderConfig = "timeout 0\n"
	// copySize is large because every write makes the FAT driver write both allocation tables.
	copySize = 4 * mib
)

// espDirectories in the order in which they are made; loader/entries must be there for systemd-boot's random seed tool.
func espDirectories() []string {
	return []string{"/EFI", "/EFI/BOOT", "/EFI/systemd", "/EFI/Linux", "/loader", "/loader/entries"}
}

// fallbackLoader is the path that firmware boots when it knows no boot entry (UEFI 2.10, section 3.5.1.1).
func fallbackLoader(architecture string) string {
	if architecture == "arm64" {
		return "/EFI/BOOT/BOOTAA64.EFI"
	}

	return "/EFI/BOOT/BOOTX64.EFI"
}

func systemdBoot(architecture string) string {
	if architecture == "arm64" {
		return "/EFI/systemd/systemd-bootaa64.efi"
	}

	return "/EFI/systemd/systemd-bootx64.efi"
}

// esp is the EFI system partition while it is made.
type esp struct {
	fs *fat32.FileSystem
}

// writeESP makes the EFI system partition's file system, whose sectors are the disk's, and reads everything back.
func writeESP(
	ctx context.Context, source osimage.Source, out *noted, place partition, sectorSize int64, ids identities,
) error {
	fs, err := createFAT(out, place, sectorSize)
	if err != nil {
		return err
	}

	made := &esp{fs: fs}

	for _, directory := range espDirectories() {
		if err := fs.Mkdir(directory); err != nil {
			return fmt.Errorf("making %s: %w", directory, err)
		}
	}

	config := source.Config()

	for _, entry := range []struct {
		path string
		role osimage.Role
	}{
		{fallbackLoader(config.Architecture), osimage.RoleLoader},
		{systemdBoot(config.Architecture), osimage.RoleLoader},
		{"/EFI/Linux/" + config.Label() + ".efi", osimage.RoleUKI},
	} {
		if err := made.addContent(ctx, source, entry.path, entry.role); err != nil {
			return fmt.Errorf("writing %s: %w", entry.path, err)
		}
	}

	if err := made.add("/loader/loader.conf", strings.NewReader(loaderConfig)); err != nil {
		return err
	}

	return finishFAT(out.File, place.start, sectorSize, ids.volumeID())
}

// addContent copies a content into a file and compares what can be read there with its digest.
func (e *esp) addContent(ctx context.Context, source osimage.Source, name string, role osimage.Role) error {
	body, err := source.Open(ctx, role, 0)
	if err != nil {
		return err
	}

	err = errors.Join(e.add(name, body), body.Close())
	if err != nil {
		return err
	}

	content, _ := source.Config().Content(role)

	return e.check(name, content)
}

func (e *esp) add(name string, body io.Reader) error {
	out, err := e.fs.OpenFile(name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}

	buffer := make([]byte, copySize)

	for {
		count, err := io.ReadFull(body, buffer)
		if count > 0 {
			if _, err := out.Write(buffer[:count]); err != nil {
				return errors.Join(fmt.Errorf("writing %s: %w", name, err), out.Close())
			}
		}

		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && !isImageError(err):
			return out.Close()
		case err != nil:
			return errors.Join(err, out.Close())
		}
	}
}

func isImageError(err error) bool {
	var typed *osimage.Error

	return errors.As(err, &typed)
}

func (e *esp) check(name string, content osimage.Content) error {
	in, err := e.fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}

	sum := sha256.New()
	_, err = io.CopyBuffer(sum, struct{ io.Reader }{in}, make([]byte, copySize))

	if err := errors.Join(err, in.Close()); err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}

	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != content.RawDigest {
		return &osimage.Error{
			Kind: osimage.ErrWrongDigest, Subject: name,
			Detail: fmt.Sprintf("the ESP holds %s, want %s", got, content.RawDigest),
			Fix:    "this is a bug in the FAT driver: please report it",
		}
	}

	return nil
}
