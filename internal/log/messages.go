package log

// The message ids of what administrators look for: one for each kind of event, the same in every version. Give one
// to a line with Str(MessageID, …). Every line that a daemon logs as an error has one, and so has every other that somebody
// may have to act on, or wait for; what merely helps to find a fault has none. gaia.catalog explains each to
// `journalctl -x`.
const (
	HubReady         = "6c25231da709410991a2443fa92c2c51" // the hub serves
	HubStopping      = "288d5f7f95fc41bf9426a7b23ce1fc05" // the hub stops cleanly
	HubFailed        = "919de80988e1424787dad9dfbdb39f02" // the hub cannot start, or has ended by itself
	StorageLost      = "ba7c1135ccff47d782d4533c8ce700ec" // the hub's database cannot be written
	StorageBack      = "7ef34f7f02ba42c69aa4f1db6351d457" // the hub's database can be written again
	ClockJumped      = "9a9eff322fd3423388f9b2080db06245" // a clock has jumped, or the hub's machine has slept
	RequestFailed    = "7d2c9681e92e4b28a33f05d6b5e4e27b" // a request to the hub failed by a fault of the hub
	Anchor           = "cd0e8d03d56941dcb7f1af0104040d5c" // the head of the event log, kept outside of the database
	ConductorReady   = "dea8cddd6cab49de842cf4603697376c" // a conductor works
	ConductorStopped = "bf6e45a55cc94c62a6547157cfa5681b" // a conductor has stopped cleanly
	ConductorFailed  = "b1a506f5820246218910070a37642d41" // a conductor cannot start, or has ended by itself
	ConductorStuck   = "edbbaef7cbba4b2a9e417a023c4f4a98" // the loop of a conductor does not go on
	ConfigReloaded   = "9023151850fe4414ba12631441786f29" // a conductor or the hub has taken over a changed configuration
	ConfigRefused    = "02fdfd18342346aa85622e1fe4de4bf4" // a changed configuration has a mistake
	LimitsLacking    = "814da8ca2ae446b3bf047abd9b364f47" // this machine cannot limit or measure runs as it should
	HubUnreachable   = "387b5ae76de24208b61d58440c47c68b" // a conductor gets no answer from the hub
	HubBack          = "2e9c2fa8a5e148d9a09f3965c06948dd" // the hub answers a conductor again
	Superseded       = "fd5a8aebbd094aa79d138094bfbc44a8" // a newer process has registered as this conductor
	DrainChanged     = "78370a65a7584d9884969b87e666bafc" // somebody lets a conductor drain, or claim again
	ClaimingPaused   = "8d6ec9b55fa746daa88e1a39b54d3ec0" // a conductor claims nothing because of its own machine
	ClaimingResumed  = "8ca3e1b432d443959c9435d116ffc201" // what was in the way of claiming is over
	SparesLacking    = "4e46950736e54e5382ac17b81879470e" // the spare worktrees cannot be kept
	HooksUntrusted   = "1bd847a767de4afb8f6d7f2226555909" // a checkout's hooks are not trusted
	RunClaimed       = "8847ca7be23f4a749cb172282fb624e3" // a conductor has claimed a ticket
	RunNotStarted    = "d1e0d8f6dcd64bf9ba28009cb363fdae" // a claimed run could not be started
	RunStarted       = "435bc50faf3341eeb3759fd709b67263" // a run's session began
	RunFailed        = "6fa7d74bb60741b690272b1952e46a94" // a run has failed
	RunEnded         = "1c6f5593bbb14334bd4fd54e0b0ff455" // a run ended
	RunsLost         = "45f885d100554e3897c9f253683d302c" // many runs vanished at once
	TicketHeld       = "e982de6dd4d541e7bb3db048ac7b2108" // a ticket waits for a person
	SessionStarted   = "5aab34afd43a4b588f2726b861fa6475" // an agent's terminal is up
	SessionEnded     = "22eeb0107d114bfa93eea6608c207d22" // an agent's terminal is closed, and the record of it written
	SessionFailed    = "9ecf2c9a4fc04424bb35ea010898b847" // the host of a run cannot go on
	RecordLost       = "8559601131c541549d2670c452642b91" // the record of a run's end could not be written
	RunFolderBroken  = "09ca7839b94e45a6ba5c8c637e417245" // a run folder cannot be read
	TreeUnknown      = "984c2ee82a134af1b5bedcd3a5ab5dbb" // the worktree of an ended run cannot be looked at
)
