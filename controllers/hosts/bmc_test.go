package hosts

import (
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/bmc"
)

func TestBMC(t *testing.T) {
	t.Parallel()
	type annotations map[string]string
	for name, c := range map[string]struct {
		annotations annotations
		want        func(bmc.Options) bool
		fails       string
	}{
		"nothing said": {nil, func(o bmc.Options) bool {
			return !o.LegacyTLS && o.CipherSuite == 0 && o.Pause == 0 && o.SkipVerify && o.Address.Host == "10.0.0.1"
		}, ""},
		"old TLS":            {annotations{AnnotationLegacyTLS: "true"}, func(o bmc.Options) bool { return o.LegacyTLS }, ""},
		"no old TLS":         {annotations{AnnotationLegacyTLS: "false"}, func(o bmc.Options) bool { return !o.LegacyTLS }, ""},
		"cipher suite":       {annotations{AnnotationCipherSuite: "17"}, func(o bmc.Options) bool { return o.CipherSuite == 17 }, ""},
		"pause":              {annotations{AnnotationPause: "5s"}, func(o bmc.Options) bool { return o.Pause == 5*time.Second }, ""},
		"not a bool":         {annotations{AnnotationLegacyTLS: "yes please"}, nil, AnnotationLegacyTLS},
		"not a number":       {annotations{AnnotationCipherSuite: "best"}, nil, AnnotationCipherSuite},
		"no authentication":  {annotations{AnnotationCipherSuite: "0"}, nil, AnnotationCipherSuite},
		"no such suite":      {annotations{AnnotationCipherSuite: "18"}, nil, AnnotationCipherSuite},
		"not a duration":     {annotations{AnnotationPause: "5"}, nil, AnnotationPause},
		"a negative pause":   {annotations{AnnotationPause: "-5s"}, nil, AnnotationPause},
		"longer than a pass": {annotations{AnnotationPause: "11s"}, nil, AnnotationPause},
	} {
		host := &metal3.BareMetalHost{
			ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "h1", Annotations: c.annotations},
			Spec: metal3.BareMetalHostSpec{BMC: metal3.BMCDetails{
				Address: "redfish://10.0.0.1/redfish/v1/Systems/1", DisableCertificateVerification: true,
			}},
		}
		got, err := BMC(host)
		switch {
		case c.fails == "" && (err != nil || !c.want(got)):
			t.Errorf("%s: %+v, %v", name, got, err)
		case c.fails != "" && (bmc.KindOf(err) != bmc.Unsupported || !strings.Contains(err.Error(), c.fails) ||
			!strings.Contains(err.Error(), c.annotations[c.fails])):
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := BMC(&metal3.BareMetalHost{Spec: metal3.BareMetalHostSpec{BMC: metal3.BMCDetails{Address: "gopher://x"}}}); err == nil {
		t.Error("an address that nobody knows")
	}
}
