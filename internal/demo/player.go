package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"gaia/internal/codingagent"
	"gaia/internal/model"
	"gaia/internal/scriptagent"
)

// player is an agent that is ready to play.
type player struct {
	who   string // for the audience
	table string // its part of machine.toml
	leave func()
}

var players = map[string]func(stage) (player, error){"script": scriptPlayer, codingagent.Claude: claudePlayer}

func scriptPlayer(s stage) (player, error) {
	program, err := scriptagent.Write(s.env.Home)
	return player{
		who:   "a shell script, which needs no model",
		table: fmt.Sprintf("[agents.script]\nprogram = [%q]\n", program), leave: func() {},
	}, err
}

func claudePlayer(s stage) (player, error) {
	program, err := codingagent.Program(codingagent.Claude)
	if err != nil {
		return player{}, err
	}
	loggedIn, err := s.loggedIn(program)
	if err != nil {
		return player{}, err
	}
	if loggedIn {
		return player{
			who:   "the real claude with your login: a real model answers, which costs what it costs",
			table: fmt.Sprintf("[agents.claude]\nprogram = [%q]\n", program), leave: func() {},
		}, nil
	}
	m, err := model.Start()
	if err != nil {
		return player{}, err
	}
	m.On("", codingagent.Work(greeting))
	p := player{who: "the real claude on a scripted model, since it found no login", leave: func() { _ = m.Close() }}
	p.table, err = codingagent.ScriptedClaude(program, m.URL(), filepath.Join(s.env.Home, "claude"))
	return p, err
}

// loggedIn asks the program whether it is logged in where runs are: in the environment of the user manager.
func (s stage) loggedIn(program string) (bool, error) {
	cmd := s.command("systemd-run", "--user", "--quiet", "--collect", "--pipe", "--wait", "--", program, "auth", "status")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	var status struct {
		LoggedIn *bool `json:"loggedIn"`
	}
	// Its exit status tells the same, but not apart from what systemd-run tells by it.
	if json.Unmarshal(out, &status) != nil || status.LoggedIn == nil {
		return false, fmt.Errorf("%s does not say whether it is logged in: %w\n%s%s", program, cmp.Or(err, errors.New("no word of it")), out, &said)
	}
	return *status.LoggedIn, nil
}

// greeting is what the scripted model makes of the demo's ticket.
var greeting = map[string]model.Script{
	"qualification": commands(
		`gaia ticket comment --type qualification "Wanted: a file greetings/$GAIA_TICKET.txt that greets whoever reads it. Done when the file is there and ends with a full stop."`,
		`gaia ticket move --workflow gaia_feature spec`),
	"spec": commands(
		`gaia ticket comment --type spec "One line in greetings/$GAIA_TICKET.txt, and an entry in greetings/INDEX that names it."`,
		`gaia ticket move coding`),
	"coding": commands(
		`mkdir -p greetings && echo "Hello from $GAIA_TICKET." >"greetings/$GAIA_TICKET.txt" && git add greetings && git commit --quiet -m "Greet from $GAIA_TICKET: the ticket asks for a file that does so"`,
		`echo "$GAIA_TICKET.txt" >>greetings/INDEX && git add greetings && git commit --quiet -m "Name the greeting in the index, where readers look for it"`,
		`gaia ticket comment --type summary "greetings/$GAIA_TICKET.txt is written and named in the index; two commits on $(git branch --show-current)."`,
		`gaia ticket move review`),
	"review": commands(
		`git show "HEAD:greetings/$GAIA_TICKET.txt" HEAD:greetings/INDEX`,
		`gaia ticket comment --type acceptance "The file is committed, ends with a full stop and is in the index."`,
		`gaia ticket move done`),
}

// commands is a script that runs one command after the other and then says that it is through.
func commands(lines ...string) model.Script {
	var steps []model.Step
	for _, line := range lines {
		steps = append(steps, model.Bash(line))
	}
	return model.Steps(append(steps, model.Say("The ticket is moved."))...)
}
