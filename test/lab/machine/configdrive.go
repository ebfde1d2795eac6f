package machine

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

const (
	configLabel = "config-2"
	configTar   = "files.tar"

	isoBlock = 2048
	// isoExtra is room for the volume descriptors, path tables and directory of a drive with one file.
	isoExtra = 1 << 20

	guestDirMode = 0o755
)

// File is a file, or a symbolic link, of the guest.
type File struct {
	// Path is absolute. Folders above it are made with mode 0755; those that exist keep their mode.
	Path string
	// Mode is its permissions.
	Mode os.FileMode
	// Data is its content.
	Data []byte
	// Link makes it a symbolic link to that path instead.
	Link string
}

// writeConfigDrive writes an ISO 9660 image that holds the files in one tar archive, owned by root. A tar archive
// carries modes, links and long names exactly; ISO 9660 does not.
func writeConfigDrive(target string, files []File) error {
	work, err := os.MkdirTemp(filepath.Dir(target), ".config-")
	if err != nil {
		return fmt.Errorf("making a directory for the config drive: %w", err)
	}
	defer os.RemoveAll(work)

	archive := filepath.Join(work, configTar)
	if err := writeTar(archive, files); err != nil {
		return fmt.Errorf("writing the config drive's files: %w", err)
	}

	info, err := os.Stat(archive)
	if err != nil {
		return fmt.Errorf("reading the size of the config drive's files: %w", err)
	}

	storage, err := file.CreateFromPath(target, (info.Size()/isoBlock+1)*isoBlock+isoExtra)
	if err != nil {
		return fmt.Errorf("making the config drive: %w", err)
	}
	defer storage.Close()

	drive, err := iso9660.Create(storage, 0, 0, isoBlock, work)
	if err != nil {
		return fmt.Errorf("formatting the config drive: %w", err)
	}

	if err := drive.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: configLabel}); err != nil {
		return fmt.Errorf("writing the config drive: %w", err)
	}

	if err := storage.Close(); err != nil {
		return fmt.Errorf("closing the config drive: %w", err)
	}

	return nil
}

func writeTar(target string, files []File) error {
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return fmt.Errorf("making the archive: %w", err)
	}

	return errors.Join(addFiles(out, files), out.Close())
}

func addFiles(out io.Writer, files []File) error {
	archive := tar.NewWriter(out)
	made := map[string]bool{"/": true}
	now := time.Now()

	for _, entry := range files {
		if err := addFolders(archive, path.Dir(entry.Path), made, now); err != nil {
			return err
		}

		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(entry.Path, "/"), Mode: int64(entry.Mode.Perm()),
			Size: int64(len(entry.Data)), ModTime: now,
		}
		if entry.Link != "" {
			header.Typeflag, header.Linkname, header.Size = tar.TypeSymlink, entry.Link, 0
		}

		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("adding %s: %w", entry.Path, err)
		}

		if entry.Link == "" {
			if _, err := archive.Write(entry.Data); err != nil {
				return fmt.Errorf("adding %s: %w", entry.Path, err)
			}
		}
	}

	if err := archive.Close(); err != nil {
		return fmt.Errorf("ending the archive: %w", err)
	}

	return nil
}

// addFolders adds those of the folders that a guest may lack. Well-known ones are left out, for tar would give an
// existing folder the mode of the archive.
func addFolders(archive *tar.Writer, folder string, made map[string]bool, now time.Time) error {
	if made[folder] || wellKnown(folder) {
		return nil
	}

	if err := addFolders(archive, path.Dir(folder), made, now); err != nil {
		return err
	}

	made[folder] = true

	mode := int64(guestDirMode)
	if folder == "/root/.ssh" {
		mode = dirMode // sshd insists
	}

	header := &tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(folder, "/") + "/", Mode: mode, ModTime: now,
	}
	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("adding %s: %w", folder, err)
	}

	return nil
}

func wellKnown(folder string) bool {
	switch folder {
	case "/etc", "/opt", "/root", "/var", "/var/lib", "/usr", "/tmp":
		return true
	default:
		return false
	}
}
