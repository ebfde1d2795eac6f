package bmc

// Intent is what shall become of a machine's power.
type Intent string

// The intents. "Soft" asks the operating system, and never becomes hard by itself.
const (
	IntentOn          Intent = "On"
	IntentOff         Intent = "Off"         // at once: what is in memory is lost
	IntentShutdown    Intent = "Shutdown"    // soft
	IntentRestart     Intent = "Restart"     // at once, without switching the power off where the BMC can
	IntentSoftRestart Intent = "SoftRestart" // soft
	IntentCycle       Intent = "Cycle"       // off, seen off, and on
)

// Intents are all of them.
func Intents() []Intent {
	return []Intent{IntentOn, IntentOff, IntentShutdown, IntentRestart, IntentSoftRestart, IntentCycle}
}
