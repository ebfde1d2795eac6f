package bmc

import "time"

// The default time limits.
const (
	DefaultConnectTimeout = 10 * time.Second
	DefaultRequestTimeout = 60 * time.Second
)

// DefaultCipherSuite is RAKP-HMAC-SHA1, HMAC-SHA1-96, AES-CBC-128, which every IPMI 2.0 BMC must have (table 22-20).
// OpenBMC's have 17 only, which is the same with SHA-256.
const DefaultCipherSuite = 3

// Credentials of a BMC account. White space around both must already be trimmed, as baremetal-operator does.
type Credentials struct {
	Username, Password string
}

// String keeps the password out of logs.
func (c Credentials) String() string { return c.Username + ":<redacted>" }

// GoString keeps the password out of logs.
func (c Credentials) GoString() string { return c.String() }

// Options say how to reach a machine.
type Options struct {
	// Address is where it is.
	Address Address
	// Credentials of the BMC.
	Credentials Credentials
	// SkipVerify switches off the verification of the BMC's certificate. Default false.
	SkipVerify bool
	// CA is PEM certificates to verify the BMC with, in place of the system's.
	CA []byte
	// LegacyTLS allows the cipher suites of TLS 1.2 with RSA key exchange, which give no forward secrecy and which some
	// old BMCs have only. TLS 1.2 stays the least version, and certificates are verified alike.
	LegacyTLS bool
	// CipherSuite is the one of an IPMI session. Default DefaultCipherSuite.
	CipherSuite int
	// Pause is the least time between two runs of ipmitool to one IPMI BMC. Default 0: BMCs refuse, with Busy, what comes
	// too fast, and most can take it. Give 5 s (Ironic's min_command_interval) to one that loses answers or hangs.
	Pause time.Duration
	// UUID is the SMBIOS UUID that the machine must have. Empty: not checked. A BMC that tells no UUID passes: it is what
	// was learned of the machine, and a caller to whom that is not enough asks RequireIdentity.
	UUID string
	// Accepted tells that this BMC has accepted these credentials before, in this process. Then a login that gets no answer
	// is not taken for one that is refused.
	Accepted bool
	// ConnectTimeout bounds connecting, and the TLS handshake. Default DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// RequestTimeout bounds one request with its answer. Default DefaultRequestTimeout. A call may take several requests.
	RequestTimeout time.Duration
}

// WithDefaults sets the time limits that are not set.
func (o Options) WithDefaults() Options {
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = DefaultConnectTimeout
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	if o.CipherSuite <= 0 {
		o.CipherSuite = DefaultCipherSuite
	}

	return o
}

// Check refuses credentials that are not complete, before anything is sent. Its error is of kind Auth.
func (o Options) Check() error {
	if o.Credentials.Username == "" || o.Credentials.Password == "" {
		return &Error{
			Kind: Auth, Op: "opening", BMC: o.Address.HostPort(),
			Detail: "user name or password is empty; set keys username and password of the credentials Secret",
		}
	}

	return nil
}
