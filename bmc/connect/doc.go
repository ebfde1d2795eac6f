// Package connect opens machines by the protocol of their address, and keeps a Pool of open ones.
//
// Pool guarantees, for each BMC (Address.HostPort):
//   - one operation at a time, opening and closing included, and at most one session, which is used again while the
//     options are the same; every session is closed, with a context of its own;
//   - after Transient and Busy errors a pause that doubles, with jitter, and never less than the BMC's Retry-After (up
//     to 10 minutes); a Do in the pause sends nothing and returns an error of the same kind;
//   - credentials that a login was refused with are not sent again for 10 minutes, doubling to an hour; other ones are at
//     once. After an error of kind Auth in a use the session is closed, and the next Do logs in anew: that tells an
//     account that may not do one thing, which may go on with all others, from one that is refused;
//   - an error that names another BMC counts as the caller's own: it says nothing about this one.
//
// It never calls a use twice: whether to act again is the caller's decision. Nothing is stored: a new process has no
// memory of refused credentials.
package connect
