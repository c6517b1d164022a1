-- +goose Up

-- Every row keeps the whole object as JSON in doc, which is what readers get; the other columns are what is filtered,
-- sorted, claimed or kept unique, copied from it by each write. An absent value is NULL. Times are RFC 3339 in UTC
-- with milliseconds, so that they sort as text.

CREATE TABLE users (
    id         TEXT PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    created_at TEXT,
    doc        TEXT NOT NULL
) STRICT;

CREATE TABLE projects (
    id          TEXT PRIMARY KEY NOT NULL,
    customer    TEXT,
    "key"       TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL,
    slug        TEXT NOT NULL,
    created_at  TEXT,
    updated_at  TEXT,
    last_ticket INTEGER NOT NULL DEFAULT 0, -- the newest number of a ticket
    last_run    INTEGER NOT NULL DEFAULT 0, -- the newest number of a run
    doc         TEXT NOT NULL
) STRICT;

CREATE TABLE conductors (
    id               TEXT PRIMARY KEY NOT NULL,
    machine_id       TEXT NOT NULL UNIQUE,
    epoch            TEXT NOT NULL,
    label            TEXT NOT NULL,
    owner            TEXT NOT NULL,
    project          TEXT NOT NULL REFERENCES projects (id),
    status           TEXT NOT NULL,
    draining         INTEGER NOT NULL,
    paused           TEXT,
    current_load     INTEGER NOT NULL,
    max_parallel     INTEGER NOT NULL,
    workspace_root   TEXT NOT NULL,
    version          TEXT NOT NULL,
    last_seen        TEXT,
    lease_expires_at TEXT,
    parted_at        TEXT,
    created_at       TEXT,
    doc              TEXT NOT NULL
) STRICT;
CREATE INDEX conductors_project ON conductors (project);

CREATE TABLE tickets (
    id         TEXT PRIMARY KEY NOT NULL,
    identifier TEXT NOT NULL UNIQUE,
    project    TEXT NOT NULL REFERENCES projects (id),
    workflow   TEXT,
    title      TEXT NOT NULL,
    state      TEXT NOT NULL,
    assignee   TEXT,
    target     TEXT,
    tree_at    TEXT,
    priority   REAL,
    parent     TEXT,
    origin     TEXT,
    agent      TEXT,
    branch     TEXT,
    not_before TEXT,
    retry_at   TEXT,
    hold       TEXT,             -- its reason
    attempts   INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT,
    wake_at    TEXT,             -- the later of not_before and retry_at, until a claim has seen that it is over
    busy       INTEGER NOT NULL DEFAULT 0, -- whether there is a live run; kept by writes to runs
    doc        TEXT NOT NULL,
    -- priority in claim order, null last, without nulls: comparisons of whole keys need that
    unranked   INTEGER GENERATED ALWAYS AS (priority IS NULL) VIRTUAL,
    rank       REAL GENERATED ALWAYS AS (coalesce(priority, 0.0)) VIRTUAL
) STRICT;
CREATE UNIQUE INDEX tickets_origin ON tickets (project, origin) WHERE origin IS NOT NULL;
CREATE INDEX tickets_project ON tickets (project, created_at);
CREATE INDEX tickets_state ON tickets (state, project);
CREATE INDEX tickets_parent ON tickets (parent) WHERE parent IS NOT NULL;
CREATE INDEX tickets_assignee ON tickets (assignee) WHERE assignee IS NOT NULL;
CREATE INDEX tickets_target ON tickets (target) WHERE target IS NOT NULL;
CREATE INDEX tickets_tree_at ON tickets (tree_at) WHERE tree_at IS NOT NULL;
CREATE INDEX tickets_hold ON tickets (hold) WHERE hold IS NOT NULL;
-- The claim walks the first of these in order and wakes up what is due by the second; a ticket that is held, busy or
-- waiting costs it nothing.
CREATE INDEX tickets_claim ON tickets (project, state, unranked, rank, created_at, identifier)
    WHERE hold IS NULL AND busy = 0 AND wake_at IS NULL;
CREATE INDEX tickets_wake ON tickets (project, state, wake_at)
    WHERE hold IS NULL AND busy = 0 AND wake_at IS NOT NULL;

CREATE TABLE ticket_labels (
    ticket TEXT NOT NULL REFERENCES tickets (id),
    value  TEXT NOT NULL,
    PRIMARY KEY (ticket, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX ticket_labels_value ON ticket_labels (value);

CREATE TABLE ticket_blockers (
    ticket TEXT NOT NULL REFERENCES tickets (id),
    value  TEXT NOT NULL REFERENCES tickets (id),
    PRIMARY KEY (ticket, value)
) STRICT, WITHOUT ROWID;
CREATE INDEX ticket_blockers_value ON ticket_blockers (value);

CREATE TABLE runs (
    id               TEXT PRIMARY KEY NOT NULL,
    number           INTEGER NOT NULL,
    project          TEXT NOT NULL REFERENCES projects (id),
    ticket           TEXT NOT NULL REFERENCES tickets (id),
    conductor        TEXT NOT NULL REFERENCES conductors (id),
    mode             TEXT NOT NULL,
    state            TEXT NOT NULL,
    attempt          INTEGER NOT NULL,
    claimed_at       TEXT,
    claim_expires_at TEXT,
    state_at_start   TEXT NOT NULL,
    started_at       TEXT,
    ended_at         TEXT,
    end_reason       TEXT,
    finalized_at     TEXT,
    branch           TEXT,
    unit             TEXT,
    agent            TEXT,
    permissions      TEXT,
    live             INTEGER NOT NULL,
    doc              TEXT NOT NULL,
    UNIQUE (project, number)
) STRICT;
CREATE UNIQUE INDEX runs_live ON runs (ticket) WHERE live = 1;
CREATE INDEX runs_live_conductor ON runs (conductor, state_at_start) WHERE live = 1;
CREATE INDEX runs_live_project ON runs (project, state_at_start) WHERE live = 1;
CREATE INDEX runs_unfinished ON runs (conductor) WHERE finalized_at IS NULL;
CREATE INDEX runs_ticket ON runs (ticket, ended_at, number);
CREATE INDEX runs_conductor ON runs (conductor);

CREATE TABLE comments (
    id         TEXT PRIMARY KEY NOT NULL,
    ticket     TEXT NOT NULL REFERENCES tickets (id),
    author     TEXT NOT NULL,
    type       TEXT NOT NULL,
    created_at TEXT,
    doc        TEXT NOT NULL
) STRICT;
CREATE INDEX comments_ticket ON comments (ticket, created_at);

CREATE TABLE tokens (
    hash   BLOB PRIMARY KEY NOT NULL,
    kind   TEXT NOT NULL,
    holder TEXT NOT NULL,
    UNIQUE (kind, holder)
) STRICT, WITHOUT ROWID;

CREATE TABLE answers (
    principal TEXT NOT NULL,
    "key"     TEXT NOT NULL,
    request   BLOB NOT NULL,
    body      BLOB NOT NULL,
    at        INTEGER NOT NULL, -- microseconds since 1970
    PRIMARY KEY (principal, "key")
) STRICT;
CREATE INDEX answers_at ON answers (at);

CREATE TABLE events (
    seq   INTEGER PRIMARY KEY NOT NULL,
    bytes BLOB NOT NULL,
    hash  BLOB NOT NULL
) STRICT;

-- One row that is written to find out whether the database can be written.
CREATE TABLE health (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    written INTEGER NOT NULL,
    probe   BLOB -- as large as a large request, for the moment of the question
) STRICT;
INSERT INTO health (id, written) VALUES (1, 0);
