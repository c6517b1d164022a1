package local

import (
	"context"
	"fmt"
	"sync"

	"gaia/units"
)

// Manager is the user manager over a connection that is made when it is needed and again when it was lost: user manager
// and bus may be started anew while a conductor lives.
type Manager struct {
	runtimeDir string

	mu   sync.Mutex
	conn *units.Manager
}

// NewManager returns the user manager whose runtime folder is runtimeDir. It does not connect.
func NewManager(runtimeDir string) *Manager { return &Manager{runtimeDir: runtimeDir} }

// Close ends the connection.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		m.conn.Close()
		m.conn = nil
	}
}

func (m *Manager) get(ctx context.Context) (*units.Manager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		select {
		case <-m.conn.Lost():
			m.conn.Close()
			m.conn = nil
		default:
			return m.conn, nil
		}
	}
	conn, err := units.Connect(ctx, m.runtimeDir)
	if err != nil {
		return nil, fmt.Errorf("connecting to the user manager: %w", err)
	}
	m.conn = conn
	return conn, nil
}

// StartTransient implements executor.UnitManager.
func (m *Manager) StartTransient(ctx context.Context, u units.RunUnit) error {
	c, err := m.get(ctx)
	if err != nil {
		return err
	}
	return c.StartTransient(ctx, u)
}

// Stop implements executor.UnitManager.
func (m *Manager) Stop(ctx context.Context, unit string) error {
	c, err := m.get(ctx)
	if err != nil {
		return err
	}
	return c.Stop(ctx, unit)
}

// Kill implements executor.UnitManager.
func (m *Manager) Kill(ctx context.Context, unit string, sig int) error {
	c, err := m.get(ctx)
	if err != nil {
		return err
	}
	return c.Kill(ctx, unit, sig)
}

// ResetFailed implements executor.UnitManager.
func (m *Manager) ResetFailed(ctx context.Context, unit string) error {
	c, err := m.get(ctx)
	if err != nil {
		return err
	}
	return c.ResetFailed(ctx, unit)
}

// Status implements executor.UnitManager.
func (m *Manager) Status(ctx context.Context, unit string) (units.Status, error) {
	c, err := m.get(ctx)
	if err != nil {
		return units.Status{}, err
	}
	return c.Status(ctx, unit)
}

// List implements executor.UnitManager.
func (m *Manager) List(ctx context.Context, patterns ...string) ([]units.Status, error) {
	c, err := m.get(ctx)
	if err != nil {
		return nil, err
	}
	return c.List(ctx, patterns...)
}

// Watch implements executor.UnitManager.
func (m *Manager) Watch(ctx context.Context, match func(unit string) bool, fn func(unit string)) error {
	c, err := m.get(ctx)
	if err != nil {
		return err
	}
	return c.Watch(ctx, match, fn)
}

// Environment returns the user manager's own environment.
func (m *Manager) Environment(ctx context.Context) (map[string]string, error) {
	c, err := m.get(ctx)
	if err != nil {
		return nil, err
	}
	return c.Environment(ctx)
}

// Abilities returns what becomes of the limits of runs on this machine.
func (m *Manager) Abilities(ctx context.Context) (units.Abilities, error) {
	c, err := m.get(ctx)
	if err != nil {
		return units.Abilities{}, err
	}
	return c.Abilities(ctx)
}
