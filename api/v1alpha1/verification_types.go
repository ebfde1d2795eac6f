package v1alpha1

// VerificationPolicy says what happens to an image that no trusted key signed.
// +kubebuilder:validation:Enum=Require;Warn;Off
type VerificationPolicy string

// The policies.
const (
	// VerificationRequire refuses it.
	VerificationRequire VerificationPolicy = "Require"
	// VerificationWarn lets it pass, and says so.
	VerificationWarn VerificationPolicy = "Warn"
	// VerificationOff looks for no signatures.
	VerificationOff VerificationPolicy = "Off"
)

// VerificationSettings say which signatures the image of a pool needs. They are verified with public keys alone, offline.
// +kubebuilder:validation:XValidation:rule="!has(self.policy) || self.policy == 'Off' || has(self.publicKeys)",message="policy Require and Warn need publicKeys"
type VerificationSettings struct {
	// Policy says what happens to an image that none of the keys signed. Require: it is refused, by the controller before
	// anything begins and by each node before anything is written. Warn: it is rolled out, and the condition
	// ReleaseVerified and an event say so. Off: nothing is looked at. Default Require when publicKeys is set, else Off.
	// +optional
	Policy VerificationPolicy `json:"policy,omitempty"`
	// PublicKeys is where the keys are. One signature by any of them suffices.
	// +optional
	PublicKeys *PublicKeySource `json:"publicKeys,omitempty"`
}

// Effective is the policy with its default.
func (v *VerificationSettings) Effective() VerificationPolicy {
	switch {
	case v.Policy != "":
		return v.Policy
	case v.PublicKeys != nil:
		return VerificationRequire
	default:
		return VerificationOff
	}
}

// PublicKeySource names an object of the pool's namespace with public keys.
// +kubebuilder:validation:XValidation:rule="has(self.configMapName) != has(self.secretName)",message="give one of configMapName and secretName"
type PublicKeySource struct {
	// ConfigMapName is a ConfigMap whose values are public keys in PEM, one or more in each.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ConfigMapName string `json:"configMapName,omitempty"`
	// SecretName is a Secret with the same.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SecretName string `json:"secretName,omitempty"`
	// Key is the only one of the object's keys that is read. Omitted: all are.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
}

// NodeVerification says which signatures a node wants to see before it stages the release. The node's own key folder, when
// it has keys, is asked besides, and nothing here takes that back.
type NodeVerification struct {
	// Policy says what happens to an image that none of the keys signed.
	// +kubebuilder:validation:XValidation:rule="self != 'Off'",message="must be Require or Warn; leave verification out to ask for nothing"
	Policy VerificationPolicy `json:"policy"`
	// PublicKeys are the keys, each as one PEM block. One signature by any of them suffices.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=2048
	// +kubebuilder:validation:items:XValidation:rule="self.startsWith('-----BEGIN PUBLIC KEY-----')",message="must be a public key in PEM, -----BEGIN PUBLIC KEY-----"
	PublicKeys []string `json:"publicKeys"`
}

// ReleaseSignature is what was found of the signatures of a resolved release, over the digest that the nodes pull.
type ReleaseSignature struct {
	// Policy and KeySet are what it was checked with: KeySet is the SHA-256 of the trusted keys' fingerprints.
	Policy VerificationPolicy `json:"policy"`
	KeySet string             `json:"keySet"`
	// Verified tells whether a trusted key signed it.
	Verified bool `json:"verified"`
	// Key is the fingerprint of that key: the SHA-256 of its SubjectPublicKeyInfo, "sha256:…".
	// +optional
	Key string `json:"key,omitempty"`
	// Form is where the signature lies: "tag" or "bundle".
	// +optional
	Form string `json:"form,omitempty"`
	// Message says what was found when it is not verified.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
}

// Refused tells whether the release must not be rolled out.
func (s *ReleaseSignature) Refused() bool {
	return s != nil && s.Policy == VerificationRequire && !s.Verified
}
