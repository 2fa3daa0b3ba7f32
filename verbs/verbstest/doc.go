// Package verbstest holds what tests of providers and of their users share:
//
//   - Run, the one conformance suite that every provider passes;
//   - Loop, a reference provider: two or more devices in one process over a
//     perfect network, small enough to be read;
//   - Fault, a provider around another one that fails, delays or loses what a
//     test tells it to, and FailEach, which fails each call of a piece of code in
//     turn and expects that nothing stays open;
//   - Trace, a provider around another one that reports every handle left open
//     at the end of a test together with the stack that created it.
//
// A test skips only where a provider answers verbs.ErrNotSupported, and says so.
// Random choices come from Seed, which logs its value and takes RS_TEST_SEED.
//
// Owns: the above. It is imported by tests only.
// Imports: verbs, testing and the standard library.
// Goroutines: one per open Loop device when LoopOptions.Async is set; the
// device's Close waits for it. Timers of stalled requests end with their QP.
// Locks: Loop.mu guards everything of a Loop; Fault and Trace each have a leaf
// lock that is never held across a call into the provider beneath.
package verbstest
