package bmc

// MediaSlot is one virtual drive of a BMC.
type MediaSlot struct {
	// ID names the slot within the machine, as Insert and Eject take it.
	ID string
	// Types are its media types as the BMC gives them, such as CD, DVD or USBStick.
	Types []string
	// Image is the URL of the image in it, without credentials; "" when it is empty or the BMC does not say.
	Image string
	// Inserted tells whether there is an image in it.
	Inserted bool
	// Insertable tells whether the BMC lets an image be inserted.
	Insertable bool
}
