package log

// The message ids of what administrators look for: one for each kind of event, the same in every version. Give one
// to a line with Str(MessageID, …). gaia.catalog explains each to `journalctl -x`.
const (
	HubReady       = "6c25231da709410991a2443fa92c2c51" // the hub serves
	HubStopping    = "288d5f7f95fc41bf9426a7b23ce1fc05" // the hub stops cleanly
	StorageLost    = "ba7c1135ccff47d782d4533c8ce700ec" // the hub's database cannot be written
	StorageBack    = "7ef34f7f02ba42c69aa4f1db6351d457" // the hub's database can be written again
	Anchor         = "cd0e8d03d56941dcb7f1af0104040d5c" // the head of the event log, kept outside of the database
	ConductorReady = "dea8cddd6cab49de842cf4603697376c" // a conductor works
	HubUnreachable = "387b5ae76de24208b61d58440c47c68b" // a conductor gets no answer from the hub
	HubBack        = "2e9c2fa8a5e148d9a09f3965c06948dd" // the hub answers a conductor again
	Superseded     = "fd5a8aebbd094aa79d138094bfbc44a8" // a newer process has registered as this conductor
	RunStarted     = "435bc50faf3341eeb3759fd709b67263" // a run's session began
	RunEnded       = "1c6f5593bbb14334bd4fd54e0b0ff455" // a run ended
	RunsLost       = "45f885d100554e3897c9f253683d302c" // many runs vanished at once
	TicketHeld     = "e982de6dd4d541e7bb3db048ac7b2108" // a ticket waits for a person
	HooksUntrusted = "1bd847a767de4afb8f6d7f2226555909" // a checkout's hooks are not trusted
)
