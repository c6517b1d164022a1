-- +goose Up

-- A ticket that is meant for somebody else must cost a claim nothing: target and assignee come before the order.
DROP INDEX tickets_claim;
CREATE INDEX tickets_claim ON tickets (project, state, target, assignee, unranked, rank, created_at, identifier)
    WHERE hold IS NULL AND busy = 0 AND wake_at IS NULL;

-- The footprint in columns of its own. As columns that were computed from doc they, and the index of them, were computed
-- twice by each write to a run, whatever it changed.
DROP INDEX runs_used;
ALTER TABLE runs DROP COLUMN tokens_in;
ALTER TABLE runs ADD COLUMN tokens_in INTEGER;
ALTER TABLE runs DROP COLUMN tokens_out;
ALTER TABLE runs ADD COLUMN tokens_out INTEGER;
ALTER TABLE runs DROP COLUMN tokens_cache_read;
ALTER TABLE runs ADD COLUMN tokens_cache_read INTEGER;
ALTER TABLE runs DROP COLUMN tokens_cache_write;
ALTER TABLE runs ADD COLUMN tokens_cache_write INTEGER;
ALTER TABLE runs DROP COLUMN turns;
ALTER TABLE runs ADD COLUMN turns INTEGER;
ALTER TABLE runs DROP COLUMN cost;
ALTER TABLE runs ADD COLUMN cost REAL;
ALTER TABLE runs DROP COLUMN wall_ms;
ALTER TABLE runs ADD COLUMN wall_ms INTEGER;
ALTER TABLE runs DROP COLUMN cpu_ms;
ALTER TABLE runs ADD COLUMN cpu_ms INTEGER;
ALTER TABLE runs DROP COLUMN memory_peak;
ALTER TABLE runs ADD COLUMN memory_peak INTEGER;
ALTER TABLE runs DROP COLUMN io_read;
ALTER TABLE runs ADD COLUMN io_read INTEGER;
ALTER TABLE runs DROP COLUMN io_write;
ALTER TABLE runs ADD COLUMN io_write INTEGER;
UPDATE runs SET
    tokens_in = doc ->> '$.footprint.tokens_in',
    tokens_out = doc ->> '$.footprint.tokens_out',
    tokens_cache_read = doc ->> '$.footprint.tokens_cache_read',
    tokens_cache_write = doc ->> '$.footprint.tokens_cache_write',
    turns = doc ->> '$.footprint.turns',
    cost = doc ->> '$.footprint.cost',
    wall_ms = doc ->> '$.footprint.wall_ms',
    cpu_ms = doc ->> '$.footprint.cpu_ms',
    memory_peak = doc ->> '$.footprint.memory_peak',
    io_read = doc ->> '$.footprint.io_read',
    io_write = doc ->> '$.footprint.io_write'
    WHERE doc ->> '$.footprint' IS NOT NULL;
CREATE INDEX runs_used ON runs (project, tokens_in, tokens_out, tokens_cache_read, tokens_cache_write, turns,
    cost, wall_ms, cpu_ms, memory_peak, io_read, io_write);
