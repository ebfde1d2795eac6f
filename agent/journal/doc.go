// Package journal keeps the agent's memory: one small JSON file that is replaced atomically and fsynced.
//
// It stores intents and facts that cannot be observed again: which attempt was taken up, that its image was staged and
// verified, the boot ID before the reboot, how it ended. Everything else (what runs, what boots next, what the boot
// gate found, what the cluster wants) is read from the world each time, never from here.
//
// A journal that is lost or damaged is not an error: Load then says so, and the agent rebuilds what it can from the
// slots, the boot gate's files and its NodeUpdate. A damaged file is kept beside the new one for a person to look at.
package journal
