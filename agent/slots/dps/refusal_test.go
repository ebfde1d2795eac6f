package dps_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// Each is refused by Check, and Stage does not write a byte either.
func TestRefusals(t *testing.T) {
	t.Parallel()

	uki := func(name, version string) []byte { return faulty.UKI(name, version, "root=/dev/x") }

	for name, tt := range map[string]struct {
		machine func(t *testing.T, b *bench)
		config  func(config *osimage.Config)
		want    v1alpha1.Reason
	}{
		"older":        {config: setVersion("0.9.9"), want: v1alpha1.ReasonVersionNotNewer},
		"same version": {config: setVersion("1.0.0"), want: v1alpha1.ReasonVersionNotNewer},
		"release candidate": {config: setVersion("1.0.0-rc1"), machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.RemoveFile("EFI/Linux/" + oldEntry)
			b.old = faulty.NewImage("labos", "1.0.1")
			must(t, b.machine.Install(b.old, 0, "labos_1.0.1.efi"))
			b.machine.Run(b.old, 0)
		}, want: v1alpha1.ReasonVersionNotNewer},
		"same root hash": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.RunningHash = b.next.Config().RootHash
			b.machine.RemoveFile("EFI/Linux/" + oldEntry)
			b.machine.PutFile("EFI/Linux/x.efi", faulty.UKI("labos", "1.0.0", "usrhash="+b.next.Config().RootHash))
		}, want: v1alpha1.ReasonVersionNotNewer},
		"source too old": {config: func(c *osimage.Config) { c.MinSourceVersion = "1.0.5" }, want: v1alpha1.ReasonSourceTooOld},
		"architecture":   {config: func(c *osimage.Config) { c.Architecture = "arm64" }, want: v1alpha1.ReasonWrongArchitecture},
		"no config":      {config: func(c *osimage.Config) { c.RootHash = "00" }, want: v1alpha1.ReasonImageInvalid},
		"counter in version": {
			config: func(c *osimage.Config) { c.Version = "1.1.0+5" }, want: v1alpha1.ReasonImageInvalid,
		},
		"root image on a usr machine": {config: func(c *osimage.Config) {
			c.Contents = slices.Clone(c.Contents)
			c.Contents[0].Role, c.Contents[1].Role = osimage.RoleRoot, osimage.RoleRootVerity
		}, want: v1alpha1.ReasonSchemeUnsupported},
		"Flatcar's image": {config: func(c *osimage.Config) {
			c.Scheme, c.Contents = osimage.SchemeGPTPrio, []osimage.Content{c.Contents[0], c.Contents[2]}
			c.Contents[1].Role = osimage.RoleKernel
		}, want: v1alpha1.ReasonSchemeUnsupported},
		"Garden Linux's image": {config: func(c *osimage.Config) {
			c.Scheme, c.RootHash, c.Contents = osimage.SchemeUKI, "", c.Contents[2:3]
		}, want: v1alpha1.ReasonSchemeUnsupported},
		"file system too large": {config: func(c *osimage.Config) {
			c.Contents = slices.Clone(c.Contents)
			c.Contents[0].RawSize = 64*faulty.SectorSize + 1
		}, want: v1alpha1.ReasonImageTooLarge},
		"hash tree too large": {config: func(c *osimage.Config) {
			c.Contents = slices.Clone(c.Contents)
			c.Contents[1].RawSize = 16*faulty.SectorSize + 1
		}, want: v1alpha1.ReasonImageTooLarge},
		"boot partition full": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.FillBoot(1 << 20)
		}, want: v1alpha1.ReasonBootPartitionFull},
		"another image before it": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.PutFile("EFI/Linux/aos.efi", uki("aos", "1"))
		}, want: v1alpha1.ReasonBootEntryConflict},
		"newer leftover": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.PutFile("EFI/Linux/leftover.efi", uki("labos", "7"))
		}, want: v1alpha1.ReasonVersionNotNewer},
		"text entry before it": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.PutFile("loader/entries/a.conf", []byte("title A\nsort-key a\nlinux /a\n"))
		}, want: v1alpha1.ReasonBootEntryConflict},
		"default entry": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			must(t, b.machine.SetVariable(boot.LoaderEntryDefault, "labos_1.0.0.efi"))
		}, want: v1alpha1.ReasonBootEntryConflict},
		"running slot without entry": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.RemoveFile("EFI/Linux/" + oldEntry)
		}, want: v1alpha1.ReasonBootEntryConflict},
		"nothing committed": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.RemoveFile("EFI/Linux/" + oldEntry)
			b.machine.PutFile("EFI/Linux/labos_1.0.0+2-1.efi", b.old.Content(osimage.RoleUKI))
		}, want: v1alpha1.ReasonNoSpareSlot},
		"boot loader from another disk": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			must(t, b.machine.SetVariable(boot.LoaderDevicePartUUID, "00000000-1111-4222-8333-944455556666"))
		}, want: v1alpha1.ReasonSchemeUnsupported},
		"no systemd-boot": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			must(t, b.machine.SetVariable(boot.LoaderDevicePartUUID, ""))
		}, want: v1alpha1.ReasonSchemeUnsupported},
		"no table": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.Scribble(0, make([]byte, 34*faulty.SectorSize))
			b.machine.Scribble(1023*faulty.SectorSize, make([]byte, faulty.SectorSize))
		}, want: v1alpha1.ReasonStorageError},
		"running entry under the staged name": {machine: func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.PutFile("EFI/Linux/.stayput-staged.tmp", b.old.Content(osimage.RoleUKI))
		}, want: v1alpha1.ReasonBootEntryConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			if tt.machine != nil {
				tt.machine(t, b)
			}

			image := b.next
			if tt.config != nil {
				image = changed{image, tt.config}.image()
			}

			wantRefusal(t, b.scheme.Check(t.Context(), image.Config()), tt.want)
			wantRefusal(t, b.scheme.Stage(t.Context(), image, nil), tt.want)

			if err := b.scheme.Arm(t.Context(), image.Config(), 3); err == nil {
				t.Error("it was armed")
			}

			if b.written != 0 {
				t.Errorf("%d bytes were written", b.written)
			}
		})
	}
}

// The UKI is judged only once it is there; it must not get a name then.
func TestUKIOfAnotherImage(t *testing.T) {
	t.Parallel()

	good := faulty.NewImage("labos", "1.1.0")
	hash := "usrhash=" + good.Config().RootHash

	for name, uki := range map[string][]byte{
		"no image":  []byte("MZ and nothing more"),
		"root hash": faulty.UKI("labos", "1.1.0", "usrhash=00"),
		"name":      faulty.UKI("other", "1.1.0", hash),
		"version":   faulty.UKI("labos", "1.1.1", hash),
		"no osrel":  faulty.PE(map[string][]byte{".cmdline": []byte(hash)}, ".cmdline"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			image := faulty.MakeImage("labos", "1.1.0", good.Config().RootHash, map[osimage.Role][]byte{
				osimage.RoleUSR: good.Content(osimage.RoleUSR), osimage.RoleUSRVerity: good.Content(osimage.RoleUSRVerity),
				osimage.RoleUKI: uki,
			})

			wantRefusal(t, b.scheme.Stage(t.Context(), image, nil), v1alpha1.ReasonImageInvalid)

			if err := b.scheme.Arm(t.Context(), image.Config(), 3); err == nil {
				t.Error("it was armed")
			}

			b.boot(t, "1.0.0")
		})
	}
}

func TestFullBootPartitionWhileWriting(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)

	// Whoever fills it after the check: the error is transient and the running entry stays.
	third := faulty.NewImage("labos", "1.2.0")
	b.machine.FillBoot(1<<20 + 200)

	err := b.scheme.Stage(t.Context(), third, nil)
	if err != nil {
		wantRefusal(t, err, v1alpha1.ReasonBootPartitionFull)
	}

	b.boot(t, "1.0.0")
}

func TestArmRefusesWhatAppearedAfterStaging(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)
	must(t, b.machine.SetVariable(boot.LoaderEntryOneShot, "labos_1.0.0.efi"))
	wantRefusal(t, b.scheme.Arm(t.Context(), b.next.Config(), 3), v1alpha1.ReasonBootEntryConflict)
	must(t, b.machine.SetVariable(boot.LoaderEntryOneShot, ""))

	if err := b.scheme.Arm(t.Context(), b.next.Config(), 0); err == nil {
		t.Error("armed without a try")
	}

	b.machine.PutFile("EFI/Linux/labos_1.1.0.efi", b.next.Content(osimage.RoleUKI))

	if err := b.scheme.Arm(t.Context(), b.next.Config(), 3); !errors.Is(err, slots.ErrNotStaged) {
		t.Errorf("with a twin Arm() = %v, want ErrNotStaged", err)
	}
}

func setVersion(version string) func(*osimage.Config) {
	return func(config *osimage.Config) { config.Version = version }
}

// changed is an image with a changed config.
type changed struct {
	base   *faulty.Image
	change func(*osimage.Config)
}

func (c changed) image() *faulty.Image {
	config := c.base.Config()
	c.change(&config)

	return c.base.WithConfig(config)
}
