package faulty

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/osimage"
)

// maxStarts bounds how often the firmware starts the boot loader until a slot runs.
const maxStarts = 30

var (
	errDamaged = errors.New("damaged")
	errNoBoot  = errors.New("nothing boots")
)

// Protected are the bytes and names that nothing may change.
type Protected struct {
	slot  int
	image *Image
	entry string
	table []gpt.Partition
}

// Protect remembers a slot, its boot entry, and the partition table.
func (m *Machine) Protect(image *Image, slot int, entry string) (Protected, error) {
	table, err := m.table()
	if err != nil {
		return Protected{}, err
	}

	p := Protected{slot: slot, image: image, entry: entry}
	for _, partition := range table.Partitions {
		p.table = append(p.table, *partition)
	}

	return p, nil
}

// Judge tells what is wrong with the machine: a protected slot that is not what it was, a partition that moved, or a boot
// entry that would start anything but a whole image.
func (m *Machine) Judge(protected Protected) error {
	table, err := m.table()
	if err != nil {
		return err
	}

	spare := PartitionDataA + 2*(1-protected.slot)

	for i, was := range protected.table {
		is := *table.Partitions[i]
		if is.Index == spare || is.Index == spare+1 {
			was.Name, was.GUID = is.Name, is.GUID
		}

		if is != was {
			return fmt.Errorf("partition %d is %+v and was %+v: %w", is.Index, is, was, errDamaged)
		}
	}

	if err := m.JudgeSlot(protected.image, protected.slot, protected.entry); err != nil {
		return err
	}

	return m.judgeEntries(table)
}

// JudgeSlot tells whether a slot and its boot entry are whole.
func (m *Machine) JudgeSlot(image *Image, slot int, entry string) error {
	table, err := m.table()
	if err != nil {
		return err
	}

	if err := m.wholeImage(table, slot, image); err != nil {
		return err
	}

	file, ok := m.fat.files[strings.ToLower("EFI/Linux/"+entry)]
	if !ok || !bytes.Equal(file.data.content, image.Content(osimage.RoleUKI)) {
		return fmt.Errorf("boot entry %s: %w", entry, errDamaged)
	}

	return nil
}

func (m *Machine) judgeEntries(table *gpt.Table) error {
	for key, file := range m.fat.files {
		name := boot.ParseEntryName(path.Base(file.name))
		if path.Dir(key) != "efi/linux" || !strings.EqualFold(name.Ext, ".efi") || name.Counted && name.Left == 0 {
			continue
		}

		if err := m.judgeEntry(table, file); err != nil {
			return fmt.Errorf("boot entry %s: %w", file.name, err)
		}
	}

	return nil
}

func (m *Machine) judgeEntry(table *gpt.Table, file fatFile) error {
	uki, err := boot.ReadUKI(bytes.NewReader(file.data.content))
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}

	image := m.images[uki.RootHash()]
	if image == nil || !bytes.Equal(image.Content(osimage.RoleUKI), file.data.content) {
		return fmt.Errorf("its bytes are of no image: %w", errDamaged)
	}

	slot := slotOf(table, uki.RootHash())
	if slot < 0 {
		return fmt.Errorf("no partitions have root hash %s: %w", uki.RootHash(), errDamaged)
	}

	return m.wholeImage(table, slot, image)
}

func (m *Machine) wholeImage(table *gpt.Table, slot int, image *Image) error {
	for i, role := range []osimage.Role{osimage.RoleUSR, osimage.RoleUSRVerity} {
		want := image.Content(role)
		got := make([]byte, len(want))

		if _, err := m.disk.readAt(got, table.Partitions[PartitionDataA+2*slot+i-1].GetStart()); err != nil {
			return err
		}

		if !bytes.Equal(got, want) {
			return fmt.Errorf("content %s of %s in slot %d: %w", role, image.Config().Label(), slot, errDamaged)
		}
	}

	return nil
}

// slotOf finds a root hash by part UUIDs, -1 when it is nowhere.
func slotOf(table *gpt.Table, rootHash string) int {
	for slot := range 2 {
		data, verity := table.Partitions[PartitionDataA+2*slot-1], table.Partitions[PartitionVerityA+2*slot-1]
		if data.GUID == hashUUID(rootHash[:32]) && verity.GUID == hashUUID(rootHash[32:]) {
			return slot
		}
	}

	return -1
}

// Boot starts the machine as firmware and systemd-boot do, again and again until a slot runs: the newest entry that has
// tries left, or is not counted, gets its counter down by one and is started; a slot that is not whole dies.
func (m *Machine) Boot() (version string, err error) {
	if err := m.SetVariable(boot.LoaderBootCountPath, ""); err != nil {
		return "", err
	}

	table, err := m.table()
	if err != nil {
		return "", err
	}

	for range maxStarts {
		key, uki, ok := m.pick()
		if !ok {
			return "", errNoBoot
		}

		file, counted := m.countDown(key)

		if m.judgeEntry(table, file) != nil {
			continue
		}

		m.RunningSlot, m.RunningHash = slotOf(table, uki.RootHash()), uki.RootHash()

		if counted {
			err = m.SetVariable(boot.LoaderBootCountPath, strings.ReplaceAll("/"+file.name, "/", `\`))
		}

		return uki.Version(), errors.Join(err, m.SetVariable(boot.LoaderEntrySelected, strings.ToLower(path.Base(file.name))))
	}

	return "", errNoBoot
}

// pick is the newest entry that is not bad. All entries have one sort key here, and versions of numbers.
func (m *Machine) pick() (key string, image boot.UKI, found bool) {
	for candidate, file := range m.fat.files {
		name := boot.ParseEntryName(path.Base(file.name))
		if path.Dir(candidate) != "efi/linux" || path.Ext(candidate) != ".efi" || name.Counted && name.Left == 0 {
			continue
		}

		uki, err := boot.ReadUKI(bytes.NewReader(file.data.content))
		if err != nil {
			continue
		}

		if !found || newer(uki.Version(), image.Version()) {
			key, image, found = candidate, uki, true
		}
	}

	return key, image, found
}

func newer(a, b string) bool {
	var left, right [3]int
	if _, err := fmt.Sscanf(a, "%d.%d.%d", &left[0], &left[1], &left[2]); err != nil {
		return false
	}

	if _, err := fmt.Sscanf(b, "%d.%d.%d", &right[0], &right[1], &right[2]); err != nil {
		return true
	}

	for i := range left {
		if left[i] != right[i] {
			return left[i] > right[i]
		}
	}

	return false
}

// countDown renames a counted entry, as the boot loader does before it starts it.
func (m *Machine) countDown(key string) (file fatFile, counted bool) {
	file = m.fat.files[key]
	name := boot.ParseEntryName(path.Base(file.name))

	if !name.Counted {
		return file, false
	}

	name.Left, name.Done = name.Left-1, name.Done+1
	file.name = path.Join(path.Dir(file.name), name.String())

	delete(m.fat.files, key)
	m.fat.files[strings.ToLower(file.name)] = file

	return file, true
}

// Bless takes the counter of the running entry away, as systemd-bless-boot does after a good boot.
func (m *Machine) Bless() {
	for key, file := range m.fat.files {
		name := boot.ParseEntryName(path.Base(file.name))
		uki, err := boot.ReadUKI(bytes.NewReader(file.data.content))

		if path.Dir(key) != "efi/linux" || err != nil || uki.RootHash() != m.RunningHash || !name.Counted {
			continue
		}

		delete(m.fat.files, key)

		file.name = path.Join(path.Dir(file.name), name.Uncounted().String())
		m.fat.files[strings.ToLower(file.name)] = file
	}
}
