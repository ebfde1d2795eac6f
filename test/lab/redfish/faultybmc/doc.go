// Package faultybmc is a Redfish BMC in this process, for what the emulator of package redfish cannot do: faults on
// demand, sessions, several systems, odd answers. Power changes take effect at once, and every action that took
// effect is recorded, so that a test can count them.
package faultybmc
