// Package connect opens machines by the protocol of their address, and keeps a Pool of open ones.
//
// Pool guarantees, for each BMC (Address.HostPort):
//   - one operation at a time, opening and closing included, and at most one session, which is used again while the
//     options are the same; every session is closed, with a context of its own;
//   - after Transient and Busy errors a pause that doubles, with jitter, and never less than the BMC's Retry-After (up
//     to 10 minutes); a Do in the pause sends nothing and returns an error of the same kind;
//   - credentials that were refused are not sent again for 10 minutes, doubling to an hour; other ones are at once. What
//     an account may not do counts as refused, too, as drivers report both as Auth.
//
// It never calls a use twice: whether to act again is the caller's decision. Nothing is stored: a new process has no
// memory of refused credentials.
package connect
