// Package process starts the lab's servers as children that outlive the command that started them, and finds and stops
// them again, from another command or after a crash.
//
// Each process has two files in one directory: NAME.pid, which says which process it is, and NAME.log, its output.
// Stop signals a process only when the running one is the one the pid file was written for: same boot of the machine,
// same PID, same start time. The package never looks for processes by name.
package process
