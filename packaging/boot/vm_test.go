//go:build linux && vm

package boot

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gaia/domain"
)

// vm is a Debian on a virtual machine of qemu's: it has a kernel, memory and a disk of its own. Commands reach it through qemu's
// guest agent, which Debian has a package of.
type vm struct {
	machine
	dir     string // its disk, sockets and consoles
	process *os.Process
	ended   chan struct{}
}

func (v *vm) path(name string) string { return filepath.Join(v.dir, name) }

// newVM makes the disk of a machine on which the package is installed.
func newVM(t *testing.T, deb, mirror string) *vm {
	t.Helper()
	v := &vm{dir: workspace(t)}
	v.machine = machine{t: t, run: v.exec}
	root := v.path("root")
	system(t, "vm", root, deb, mirror, []string{"apt-get", "-q", "--yes", "--no-install-recommends", "install",
		"linux-image-cloud-" + runtime.GOARCH, "initramfs-tools", "udev", "qemu-guest-agent"})
	data, err := os.ReadFile(deb)
	require.NoError(t, err)
	name := "/var/cache/" + filepath.Base(deb)
	require.NoError(t, os.WriteFile(filepath.Join(root, name), data, 0o644))
	in(t, root, nil, "useradd", "--create-home", "--shell", "/bin/bash", user)
	in(t, root, nil, "apt-get", "-q", "--yes", "--no-install-recommends", "install", name)
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/machine-id"), nil, 0o444))
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/fstab"), []byte("/dev/vda / ext4 defaults 0 1\n"), 0o644))
	for _, file := range []string{"vmlinuz", "initrd.img"} {
		found, err := filepath.Glob(filepath.Join(root, "boot", file+"-*"))
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.NoError(t, os.Rename(found[0], v.path(file)))
	}
	output(t, "mkfs.ext4", "-q", "-d", root, v.path("disk"), "4G")
	require.NoError(t, os.RemoveAll(root))
	t.Cleanup(func() {
		if v.process != nil {
			if t.Failed() {
				// Not of all users: the guest agent tells of each question.
				r, err := v.exec(command{user: "root", dir: "/", argv: []string{"journalctl", "--no-pager", "--output=short-precise", "--lines=1500", fmt.Sprintf("_UID=%d", uid)}})
				t.Logf("the user's journal (%v):\n%s", err, r.stdout)
				r, err = v.exec(command{user: user, dir: checkout, argv: []string{"gaia", "snapshot", "-o", "json"}})
				t.Logf("what the hub knows (%v):\n%s%s", err, r.stdout, r.stderr)
			}
			v.cut()
		}
		if t.Failed() {
			text, _ := os.ReadFile(v.path("console"))
			t.Logf("the machine's console:\n%s", text)
		}
	})
	return v
}

// boot turns the machine on and waits until it is up.
func (v *vm) boot() {
	v.t.Helper()
	for _, name := range []string{"agent", "monitor"} {
		require.NoError(v.t, os.RemoveAll(v.path(name)))
	}
	cmd := exec.Command("qemu-system-"+map[string]string{"amd64": "x86_64"}[runtime.GOARCH],
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-accel", accel(), "-cpu", "max", "-smp", "2", "-m", "1024",
		"-kernel", v.path("vmlinuz"), "-initrd", v.path("initrd.img"), "-append", "root=/dev/vda rw console=ttyS0 panic=-1 systemd.show_status=0",
		"-no-reboot",
		// What the guest has not written to its disk is lost with it; what it has written is in a file, and stays.
		"-drive", "if=none,id=disk,format=raw,cache=writeback,file="+v.path("disk"), "-device", "virtio-blk-pci,drive=disk",
		"-chardev", "file,id=console,append=on,path="+v.path("console"), "-serial", "chardev:console",
		"-chardev", "file,id=notes,append=on,path="+v.path("notes"), "-serial", "chardev:notes",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,server=on,wait=off,path="+v.path("agent"), "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
		"-qmp", "unix:"+v.path("monitor")+",server=on,wait=off")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		// The kernel ties the death signal to the thread that forked: it stays as long as the machine.
		runtime.LockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	require.NoError(v.t, <-started)
	v.process, v.ended = cmd.Process, ended
	v.wait("the guest agent answers", func() bool {
		select {
		case <-ended:
			v.t.Fatalf("qemu ended: %s", &said)
		default:
		}
		return v.ask("guest-ping", nil, nil) == nil
	})
	v.booted()
}

// cut takes the machine's power away.
func (v *vm) cut() {
	v.t.Helper()
	_ = v.process.Kill() // it may have ended by itself
	<-v.ended
	v.process = nil
}

// accel is how qemu runs a guest: with the kernel's help where processor and kernel have it, and in software elsewhere. A
// device /dev/kvm alone says nothing: some virtual machines have one that does not work.
func accel() string {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !regexp.MustCompile(`(?m)^flags\b.*\b(vmx|svm)\b`).Match(cpu) {
		return "tcg"
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "tcg"
	}
	f.Close()
	return "kvm"
}

// ask has the guest agent do something. The port is opened for each question, so that no answer is somebody else's.
func (v *vm) ask(what string, arguments, answer any) error {
	conn, err := net.Dial("unix", v.path("agent"))
	if err != nil {
		return fmt.Errorf("reach the guest agent: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return fmt.Errorf("reach the guest agent: %w", err)
	}
	// An answer that nobody has waited for may still come: everything in front of the mark is old.
	mark := time.Now().UnixNano() % 1e9
	request := map[string]any{"execute": "guest-sync-delimited", "arguments": map[string]any{"id": mark}}
	in := bufio.NewReader(conn)
	if err := talk(conn, request); err != nil {
		return err
	}
	for {
		if _, err := in.ReadBytes(0xff); err != nil {
			return fmt.Errorf("wait for the guest agent: %w", err)
		}
		line, err := in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("wait for the guest agent: %w", err)
		}
		var sync struct{ Return int64 }
		if json.Unmarshal(line, &sync) == nil && sync.Return == mark {
			break
		}
	}
	request = map[string]any{"execute": what}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := talk(conn, request); err != nil {
		return err
	}
	var got struct {
		Return json.RawMessage
		Error  *struct{ Desc string }
	}
	if err := json.NewDecoder(in).Decode(&got); err != nil {
		return fmt.Errorf("%s: the guest agent's answer: %w", what, err)
	}
	if got.Error != nil {
		return fmt.Errorf("%s: %s", what, got.Error.Desc)
	}
	if answer != nil {
		if err := json.Unmarshal(got.Return, answer); err != nil {
			return fmt.Errorf("%s: the guest agent's answer: %w", what, err)
		}
	}
	return nil
}

func talk(w io.Writer, request any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("send a request: %w", err)
	}
	return nil
}

func (v *vm) exec(c command) (result, error) {
	// A slice of bytes is base64 in JSON, as the guest agent wants it.
	arguments := map[string]any{"path": "/usr/bin/env", "arg": c.args()[1:], "capture-output": true}
	if c.stdin != "" {
		arguments["input-data"] = []byte(c.stdin)
	}
	var started struct{ PID int }
	if err := v.ask("guest-exec", arguments, &started); err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 320*time.Millisecond) {
		var status struct {
			Exited           bool
			ExitCode, Signal int
			Out              []byte `json:"out-data"`
			Err              []byte `json:"err-data"`
		}
		if err := v.ask("guest-exec-status", map[string]any{"pid": started.PID}, &status); err != nil {
			return result{}, err
		}
		if status.Exited {
			if status.Signal != 0 {
				status.ExitCode = 128 + status.Signal
			}
			return result{string(status.Out), string(status.Err), status.ExitCode}, nil
		}
		select {
		case <-ctx.Done():
			return result{}, fmt.Errorf("%q did not end within %s", c.argv, patience)
		case <-time.After(pause):
		}
	}
}

const limits = `
[workspace]
spares = 0

[limits]
memory_max = "160M"
tasks_max = 200
cpu_weight = 50
`

// writer has the hub write one comment after the other, and notes each that the hub has acknowledged where a power cut does
// not reach it.
const writer = `#!/bin/sh
set -eu
n=0
while :; do
	n=$((n + 1))
	gaia ticket comment --type note "$1" "write $2.$n."
	echo "write $2.$n." >/dev/ttyS1
done
`

// TestMachine is what a container cannot show: limits that a kernel enforces, and a disk that has what was written to it and no more.
func TestMachine(t *testing.T) {
	need(t, os.Geteuid() == 0, "root is needed, who makes the machine's disk")
	need(t, runtime.GOARCH == "amd64", "it is written for amd64")
	needPrograms(t, "vm", "debootstrap", "systemd-nspawn", "qemu-system-x86_64", "mkfs.ext4")
	from := mirror(t)
	v := newVM(t, debs(t)[0], from)

	step := time.Now()
	done := func(what string) {
		t.Logf("%5.1f s  %s", time.Since(step).Seconds(), what)
		step = time.Now()
	}
	v.boot()
	done("booted, with " + accel() + ": " + v.versions())
	sleeps := v.suspend(2 * time.Minute)
	if !sleeps { // not every kernel wakes up again on a machine that is emulated
		v.cut()
		v.boot()
	}
	done(fmt.Sprintf("it can sleep and wake up: %t", sleeps))
	v.moveIn("max_parallel = 4", limits)
	neighbour := v.ticket("A greeting")
	run := v.coding(neighbour)
	unit := string(run.Unit)
	host := v.property(unit, "MainPID")
	group := "/sys/fs/cgroup" + v.property(unit, "ControlGroup")
	for file, want := range map[string]int{"memory.max": 160 << 20, "pids.max": 200, "cpu.weight": 50} {
		require.Equal(t, strconv.Itoa(want), strings.TrimSpace(v.asRoot("cat", group+"/"+file)), file)
	}
	done("limits reach the run of " + neighbour)

	hungry := v.ticket("hungry")
	v.wait("the hungry agent ends", func() bool {
		for _, r := range v.show(hungry).Runs {
			if r.StateAtStart == "coding" && !r.State.Live() {
				require.Equal(t, domain.ReasonOutOfMemory, r.EndReason, r.EndNote)
				return true
			}
		}
		return false
	})
	v.ada("gaia", "ticket", "move", hungry, "cancelled")
	require.NotEmpty(t, v.ada("journalctl", "--user", "--quiet", "--output=cat", "GAIA_REASON="+string(domain.ReasonOutOfMemory), "GAIA_TICKET="+hungry))
	require.Equal(t, host, v.property(unit, "MainPID"), "its neighbour lives")
	require.True(t, v.noted(neighbour, "coding", run.ID, "waits"))
	done("out of memory, and " + neighbour + " lives")

	if sleeps {
		require.True(t, v.suspend(patience))
		require.Equal(t, host, v.property(unit, "MainPID"), "the agent has slept well")
		require.True(t, v.noted(neighbour, "coding", run.ID, "waits"))
		done("suspended and woken up")
	}

	v.write(home+"/bin/writer", writer)
	v.ada("chmod", "755", home+"/bin/writer")
	v.asRoot("chmod", "666", "/dev/ttyS1")
	for _, n := range []string{"1", "2", "3"} {
		v.ada("systemd-run", "--user", "--quiet", "--collect", "--", home+"/bin/writer", neighbour, n)
	}
	boot := v.bootID()
	v.wait("the hub has acknowledged a number of writes", func() bool { return len(v.notes()) >= 30 })
	v.cut()
	v.boot()
	v.release(neighbour)
	var comments struct {
		Comments []domain.Comment `json:"comments"`
	}
	require.NoError(t, json.Unmarshal([]byte(v.ada("gaia", "ticket", "show", "-o", "json", neighbour)), &comments))
	var written []string
	for _, c := range comments.Comments {
		written = append(written, c.Body)
	}
	require.Subset(t, written, v.notes(), "what the hub has acknowledged is there")
	// A machine that is emulated may be too slow for a run now and then, which is tried again.
	for _, r := range v.done(neighbour).Runs {
		if r.ID == run.ID {
			require.Equal(t, domain.ReasonMachineLost, r.EndReason, r.EndNote)
		}
	}
	require.Equal(t, boot, strings.TrimSpace(v.ada("git", "show", "gaia/"+neighbour+":boot")), "the work goes on where it was")
	done(fmt.Sprintf("power cut while the hub wrote: %d acknowledged, none lost, %s done", len(v.notes()), neighbour))

	v.write(home+"/bin/grow", "#!/bin/sh\nset -eu\nmkdir goods\nseq 8000 | split --lines=1 --suffix-length=4 - goods/\ngit add goods\ngit commit --quiet --message=Goods\n")
	v.ada("sh", home+"/bin/grow")
	v.asRoot("sync")
	large := v.ticket("A greeting in a large repository")
	tree := home + "/.local/share/gaia/worktrees/shop/" + large
	v.release(large)
	v.wait("its worktree is being checked out", func() bool {
		return v.try(command{user: user, dir: "/", argv: []string{"test", "-e", tree + "/goods"}}).code == 0
	})
	require.NotZero(t, v.try(command{user: user, dir: "/", argv: []string{"test", "-e", checkout + "/.git/worktrees/" + large + "/gaia.json"}}).code,
		"the cut comes before the checkout is complete")
	v.cut()
	v.boot()
	v.done(large)
	require.Empty(t, v.ada("git", "-C", tree, "status", "--porcelain"))
	v.ada("git", "fsck", "--no-dangling")
	done("power cut during a checkout: " + large + " done")

	committed := v.ticket("A greeting that was committed")
	v.release(committed)
	v.wait(committed+" is in review", func() bool { return v.show(committed).State == "review" })
	boot = v.bootID()
	v.cut()
	v.boot()
	for _, r := range v.done(committed).Runs {
		if r.EndSHA != "" {
			v.ada("git", "show", "--stat", string(r.EndSHA))
		}
	}
	require.Equal(t, boot, strings.TrimSpace(v.ada("git", "show", "gaia/"+committed+":boot")))
	v.ada("git", "fsck", "--no-dangling")
	done("power cut right after the hub was told of commits: they are there, and " + committed + " is done")
}

// notes are the lines that the machine has written to its second serial line.
func (v *vm) notes() []string {
	v.t.Helper()
	text, err := os.ReadFile(v.path("notes"))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(v.t, err)
	}
	// The last line may have been cut.
	whole := text[:strings.LastIndexByte(string(text), '\n')+1]
	return lines(string(whole))
}

// suspend has the machine sleep and wakes it up, and reports whether it is awake within the limit. The kernel says on the
// console that it is; of qemu's events not each one reaches a second connection.
func (v *vm) suspend(limit time.Duration) bool {
	v.t.Helper()
	if states := v.asRoot("cat", "/sys/power/state"); !strings.Contains(states, "mem") {
		return false
	}
	monitor, err := net.Dial("unix", v.path("monitor"))
	require.NoError(v.t, err)
	defer monitor.Close()
	require.NoError(v.t, talk(monitor, map[string]any{"execute": "qmp_capabilities"}))
	woken := func() int {
		text, err := os.ReadFile(v.path("console"))
		require.NoError(v.t, err)
		return strings.Count(string(text), "PM: suspend exit")
	}
	before := woken()
	// The command's own end may be told only when the machine is awake again: nothing waits for it before.
	over := make(chan error, 1)
	go func() {
		_, err := v.exec(command{user: "root", dir: "/", argv: []string{"systemctl", "suspend", "--no-block"}})
		over <- err
	}()
	end := time.Now().Add(limit)
	for woken() == before {
		if time.Now().After(end) {
			return false
		}
		require.NoError(v.t, talk(monitor, map[string]any{"execute": "system_wakeup"})) // refused while it does not sleep
		time.Sleep(200 * time.Millisecond)
	}
	require.NoError(v.t, <-over)
	v.wait("the guest agent answers", func() bool { return v.ask("guest-ping", nil, nil) == nil })
	return true
}
