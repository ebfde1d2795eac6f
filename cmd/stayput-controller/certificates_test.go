package main

import (
	"bytes"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadCA(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, tt := range map[string]struct {
		content []byte // nil: there is no such file
		problem string // what the error names, "" for none
	}{
		"a certificate": {certificate, ""},
		"no file":       {nil, "no such file"},
		"empty":         {[]byte{}, "no PEM certificate"},
		"DER":           {server.Certificate().Raw, "no PEM certificate"},
		"a key":         {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("k")}), "no PEM certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "ca.crt")
			if tt.content != nil {
				if err := os.WriteFile(file, tt.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			data, err := readCA(file)
			if tt.problem == "" {
				if err != nil || !bytes.Equal(data, tt.content) {
					t.Fatalf("%d bytes, %v", len(data), err)
				}

				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			for _, word := range []string{tt.problem, "--bmc-ca-file", file} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not name %s", err, word)
				}
			}
		})
	}
}

// The command refuses the file before it looks for a cluster.
func TestTheCommandReadsTheCAFile(t *testing.T) {
	t.Parallel()
	command := newCommand()
	command.SetArgs([]string{"--bmc-ca-file", filepath.Join(t.TempDir(), "absent")})
	if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--bmc-ca-file") {
		t.Fatalf("got %v", err)
	}
	if help := command.Flags().FlagUsages(); !strings.Contains(help, "--bmc-ca-file") {
		t.Errorf("--help does not document it:\n%s", help)
	}
}

func TestNoCAFileMeansTheSystems(t *testing.T) {
	t.Parallel()
	if data, err := readCA(""); data != nil || err != nil {
		t.Fatalf("%q, %v", data, err)
	}
}
