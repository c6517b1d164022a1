-- +goose Up

-- What a snapshot shows must be found without reading every ticket and every run there has ever been.

CREATE INDEX tickets_wake_at ON tickets (wake_at) WHERE wake_at IS NOT NULL;
DROP INDEX tickets_tree_at;
CREATE INDEX tickets_tree_at ON tickets (tree_at, state) WHERE tree_at IS NOT NULL;
CREATE INDEX runs_state ON runs (state);

-- The footprint, in an index from which its sums are read.
ALTER TABLE runs ADD COLUMN tokens_in INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.tokens_in') VIRTUAL;
ALTER TABLE runs ADD COLUMN tokens_out INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.tokens_out') VIRTUAL;
ALTER TABLE runs ADD COLUMN tokens_cache_read INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.tokens_cache_read') VIRTUAL;
ALTER TABLE runs ADD COLUMN tokens_cache_write INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.tokens_cache_write') VIRTUAL;
ALTER TABLE runs ADD COLUMN turns INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.turns') VIRTUAL;
ALTER TABLE runs ADD COLUMN cost REAL GENERATED ALWAYS AS (doc ->> '$.footprint.cost') VIRTUAL;
ALTER TABLE runs ADD COLUMN wall_ms INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.wall_ms') VIRTUAL;
ALTER TABLE runs ADD COLUMN cpu_ms INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.cpu_ms') VIRTUAL;
ALTER TABLE runs ADD COLUMN memory_peak INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.memory_peak') VIRTUAL;
ALTER TABLE runs ADD COLUMN io_read INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.io_read') VIRTUAL;
ALTER TABLE runs ADD COLUMN io_write INTEGER GENERATED ALWAYS AS (doc ->> '$.footprint.io_write') VIRTUAL;
CREATE INDEX runs_used ON runs (project, tokens_in, tokens_out, tokens_cache_read, tokens_cache_write, turns,
    cost, wall_ms, cpu_ms, memory_peak, io_read, io_write);
