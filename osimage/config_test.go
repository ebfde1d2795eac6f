package osimage_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/osimage"
)

func digestOfDigit(digit string) string {
	return "sha256:" + strings.Repeat(digit, 64)
}

func contentOf(role osimage.Role) osimage.Content {
	return osimage.Content{Role: role, Digest: digestOfDigit("a"), Size: 10, RawDigest: digestOfDigit("b"), RawSize: 20}
}

func index(size int64) *osimage.ChunkIndex {
	return &osimage.ChunkIndex{
		Digest: digestOfDigit("c"), Size: size, IDs: &osimage.ChunkIDs{Digest: digestOfDigit("d"), Size: 8},
	}
}

func indexWith(ids *osimage.ChunkIDs) *osimage.ChunkIndex {
	return &osimage.ChunkIndex{Digest: digestOfDigit("c"), Size: 1, IDs: ids}
}

func flatcar(config *osimage.Config) {
	config.Scheme = osimage.SchemeGPTPrio
	config.Contents = []osimage.Content{contentOf(osimage.RoleUSR), contentOf(osimage.RoleKernel)}
}

// gardenLinux has a name that is too long for a GPT label: it is a file's.
func gardenLinux(config *osimage.Config) {
	config.Name, config.Scheme, config.RootHash = "baremetal-gardener_prod_tpm2_trustedboot-amd64", osimage.SchemeUKI, ""
	config.Contents = []osimage.Content{contentOf(osimage.RoleUKI)}
}

func validConfig() osimage.Config {
	return osimage.Config{
		Name: "labos", Version: "1.1.0", Architecture: "amd64", Scheme: osimage.SchemeDPS, RootHash: rootHash,
		Contents: []osimage.Content{
			contentOf(osimage.RoleUSR), contentOf(osimage.RoleUSRVerity), contentOf(osimage.RoleUKI),
		},
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(config *osimage.Config)
		// says is a part of the error, "" when the config is fine.
		says string
	}{
		"as it is":               {func(*osimage.Config) {}, ""},
		"arm64":                  {func(c *osimage.Config) { c.Architecture = "arm64" }, ""},
		"minimum source":         {func(c *osimage.Config) { c.MinSourceVersion = "1.0.0" }, ""},
		"no name":                {func(c *osimage.Config) { c.Name = "" }, "name"},
		"upper-case name":        {func(c *osimage.Config) { c.Name = "LabOS" }, "name"},
		"path as name":           {func(c *osimage.Config) { c.Name = "../labos" }, "name"},
		"a variant":              {func(c *osimage.Config) { c.Variant = "baremetal-gardener_prod_usi" }, ""},
		"upper-case variant":     {func(c *osimage.Config) { c.Variant = "Server" }, "variant"},
		"line break in variant":  {func(c *osimage.Config) { c.Variant = "server\n" }, "variant"},
		"endless variant":        {func(c *osimage.Config) { c.Variant = strings.Repeat("a", 257) }, "variant"},
		"no version":             {func(c *osimage.Config) { c.Version = "" }, "version"},
		"counter in version":     {func(c *osimage.Config) { c.Version = "1.0+3" }, "version"},
		"underscore in version":  {func(c *osimage.Config) { c.Version = "1_0" }, "version"},
		"path as version":        {func(c *osimage.Config) { c.Version = "1/0" }, "version"},
		"line break in version":  {func(c *osimage.Config) { c.Version = "1.0\n" }, "version"},
		"label too long":         {func(c *osimage.Config) { c.Version = strings.Repeat("1", 31) }, "36"},
		"longest label":          {func(c *osimage.Config) { c.Version = strings.Repeat("1", 30) }, ""},
		"unknown architecture":   {func(c *osimage.Config) { c.Architecture = "x86_64" }, "architecture"},
		"bad minimum source":     {func(c *osimage.Config) { c.MinSourceVersion = ">=1" }, "minSourceVersion"},
		"unknown scheme":         {func(c *osimage.Config) { c.Scheme = "floppy" }, "scheme"},
		"short root hash":        {func(c *osimage.Config) { c.RootHash = rootHash[1:] }, "rootHash"},
		"upper-case root hash":   {func(c *osimage.Config) { c.RootHash = strings.ToUpper(rootHash) }, "rootHash"},
		"no contents":            {func(c *osimage.Config) { c.Contents = nil }, "contents"},
		"no hash tree":           {func(c *osimage.Config) { c.Contents = append(c.Contents[:1], c.Contents[2]) }, "verity"},
		"no UKI":                 {func(c *osimage.Config) { c.Contents = c.Contents[:2] }, "uki"},
		"role twice":             {func(c *osimage.Config) { c.Contents = append(c.Contents, c.Contents[2]) }, "once"},
		"unknown role":           {func(c *osimage.Config) { c.Contents[2].Role = "firmware" }, "role"},
		"kernel beside a UKI":    {func(c *osimage.Config) { c.Contents = append(c.Contents, contentOf(osimage.RoleKernel)) }, "gptprio"},
		"Flatcar":                {func(c *osimage.Config) { flatcar(c) }, ""},
		"Flatcar with a UKI":     {func(c *osimage.Config) { flatcar(c); c.Contents[1].Role = osimage.RoleUKI }, "exactly"},
		"Flatcar, no root hash":  {func(c *osimage.Config) { flatcar(c); c.RootHash = "" }, "rootHash"},
		"Garden Linux":           {func(c *osimage.Config) { gardenLinux(c) }, ""},
		"Garden Linux, hash":     {func(c *osimage.Config) { gardenLinux(c); c.RootHash = rootHash }, "rootHash"},
		"Garden Linux and more":  {func(c *osimage.Config) { gardenLinux(c); c.Contents = validConfig().Contents }, "exactly"},
		"root beside usr":        {func(c *osimage.Config) { c.Contents[1].Role = osimage.RoleRoot }, "either"},
		"usr with a root's tree": {func(c *osimage.Config) { c.Contents[1].Role = osimage.RoleRootVerity }, "together"},
		"digest of another kind": {func(c *osimage.Config) { c.Contents[0].Digest = "md5:00" }, "digest"},
		"no raw digest":          {func(c *osimage.Config) { c.Contents[0].RawDigest = "" }, "rawDigest"},
		"a chunk index":          {func(c *osimage.Config) { c.Contents[0].ChunkIndex = index(1) }, ""},
		"an empty chunk index":   {func(c *osimage.Config) { c.Contents[0].ChunkIndex = index(0) }, "chunkIndex.size"},
		"a huge chunk index":     {func(c *osimage.Config) { c.Contents[0].ChunkIndex = index(1 << 30) }, "chunkIndex.size"},
		"an index without name":  {func(c *osimage.Config) { c.Contents[0].ChunkIndex = &osimage.ChunkIndex{Size: 1} }, "chunkIndex.digest"},
		"a chunk index of zeros": {func(c *osimage.Config) { c.Contents[0].ChunkIndex = indexWith(nil) }, ""},
		"ids of no bytes": {func(c *osimage.Config) {
			c.Contents[0].ChunkIndex = indexWith(&osimage.ChunkIDs{Digest: digestOfDigit("d")})
		}, "ids.size"},
		"ids of many bytes": {func(c *osimage.Config) {
			c.Contents[0].ChunkIndex = index(1)
			c.Contents[0].ChunkIndex.IDs.Size = 1 << 30
		}, "ids.size"},
		"ids without a name": {func(c *osimage.Config) { c.Contents[0].ChunkIndex = indexWith(&osimage.ChunkIDs{Size: 8}) }, "ids.digest"},
		"no size":            {func(c *osimage.Config) { c.Contents[0].Size = 0 }, "size"},
		"negative raw size":  {func(c *osimage.Config) { c.Contents[0].RawSize = -1 }, "rawSize"},
		"root image with its tree": {func(c *osimage.Config) {
			c.Contents[0].Role, c.Contents[1].Role = osimage.RoleRoot, osimage.RoleRootVerity
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config := validConfig()
			test.change(&config)
			err := config.Validate()

			switch {
			case test.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.says != "" && !errors.Is(err, osimage.ErrNotAnImage):
				t.Errorf("got %v, want a refusal", err)
			case test.says != "" && !strings.Contains(err.Error(), test.says):
				t.Errorf("the error %q does not name %q", err, test.says)
			}
		})
	}
}

// Whatever bytes come, ParseConfig neither panics nor lets something through that could leave the names and sizes
// that the rest of the program relies on.
func TestParseConfigOfAnything(t *testing.T) {
	t.Parallel()

	valid, err := json.Marshal(validConfig())
	if err != nil {
		t.Fatal(err)
	}

	rapid.Check(t, func(t *rapid.T) {
		data := append([]byte(nil), valid...)

		for range rapid.IntRange(0, 6).Draw(t, "changes") {
			at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
			data[at] = rapid.SampledFrom([]byte(`09aZ_+-./\"{}[],: `)).Draw(t, "byte")
		}

		config, err := osimage.ParseConfig(data)
		if err != nil {
			return
		}

		if strings.ContainsAny(config.Label(), "/+\\ ") || len(config.Label()) > 36 || strings.Contains(config.Version, "_") {
			t.Fatalf("unsafe label %q", config.Label())
		}

		for _, content := range config.Contents {
			if content.Size <= 0 || content.RawSize <= 0 {
				t.Fatalf("size %d, raw size %d", content.Size, content.RawSize)
			}
		}

		if _, ok := config.Data(); !ok {
			t.Fatal("no data content")
		}

		again, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}

		reread, err := osimage.ParseConfig(again)
		if err != nil || !reflect.DeepEqual(reread, config) {
			t.Fatalf("reading back what was written: %v", err)
		}
	})
}
