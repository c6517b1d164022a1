package api

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gaia/internal/log"
)

const (
	eventStream = "text/event-stream"
	jsonLines   = "application/jsonl"
	// eventBatch is how many entries of the log are looked at in one go.
	eventBatch = 256
	// streamPatience is how long a reader may leave an event unread before its stream is cut.
	streamPatience = 30 * time.Second
)

func (s *Server) handleEvents() {
	s.handle("/gaia/v1/events", get(endpoint{serve: (*Server).events}))
}

// events follows the log until the reader or the hub goes away.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	media, err := streamType(r)
	if err != nil {
		return err
	}
	p, err := s.principal(r)
	if err != nil {
		return err
	}
	after, now, err := startAfter(r)
	if err != nil {
		return err
	}
	ctx := r.Context()
	if now {
		if after, err = s.hub.Newest(r.Context(), p); err != nil {
			return err
		}
	}
	changed := s.hub.Changed() // before the first read, so that nothing falls between
	events, next, err := s.hub.Events(ctx, p, after, eventBatch)
	if err != nil {
		return err
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Time{}) // a stream has no end in time, only each write to it
	w.Header().Set("Content-Type", media)
	w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(s.heartbeat)
	defer beat.Stop()
	send := func(b []byte) bool {
		rc.SetWriteDeadline(time.Now().Add(streamPatience))
		if _, err := w.Write(b); err != nil {
			return false
		}
		return rc.Flush() == nil
	}
	silence := []byte("\n")
	if media == eventStream {
		silence = []byte(": alive\n\n")
	}
	if !send(silence) { // tells the reader that the stream has begun
		return nil
	}
	for {
		var out bytes.Buffer
		for _, e := range events {
			b, err := json.Marshal(e)
			if err != nil {
				s.log.Error().Str(log.MessageID, log.RequestFailed).Err(err).Int64("seq", e.Seq).Msg("an event cannot be sent")
				return nil
			}
			if media == eventStream {
				out.WriteString("id: " + strconv.FormatInt(e.Seq, 10) + "\ndata: ")
			}
			out.Write(b)
			out.WriteByte('\n')
			if media == eventStream {
				out.WriteByte('\n')
			}
		}
		if out.Len() > 0 && !send(out.Bytes()) {
			return nil
		}
		if next == after { // the end of the log, for now
			select {
			case <-changed:
			case <-beat.C:
				if !send(silence) {
					return nil
				}
			case <-ctx.Done():
				return nil
			case <-s.done:
				return nil
			}
		}
		select {
		case <-s.done:
			return nil
		default:
		}
		after, changed = next, s.hub.Changed()
		if events, next, err = s.hub.Events(ctx, p, after, eventBatch); err != nil {
			if ctx.Err() == nil {
				s.log.Debug().Err(err).Msg("an event stream ends")
			}
			return nil
		}
	}
}

// streamType chooses between server-sent events and JSON lines; whoever asks for neither gets the former.
func streamType(r *http.Request) (string, error) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accept) == "" {
		return eventStream, nil
	}
	for _, part := range strings.Split(accept, ",") {
		switch typ, _, _ := mime.ParseMediaType(strings.TrimSpace(part)); typ {
		case eventStream, "*/*", "text/*":
			return eventStream, nil
		case jsonLines:
			return jsonLines, nil
		}
	}
	return "", newProblem(http.StatusNotAcceptable, "not_acceptable", &source{Header: "Accept"}, "there are %s and %s", eventStream, jsonLines)
}

// startAfter reads where a stream begins. A browser that connects again repeats its address and adds Last-Event-ID.
func startAfter(r *http.Request) (after int64, now bool, err error) {
	v, err := parameter(r, "after")
	if err != nil {
		return 0, false, err
	}
	src, name := &source{Parameter: "after"}, "after"
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		v, src, name = id, &source{Header: "Last-Event-ID"}, "Last-Event-ID"
	}
	switch v {
	case "":
		return 0, false, nil
	case "now":
		return 0, true, nil
	}
	after, err = strconv.ParseInt(v, 10, 64)
	if err != nil || after < 0 {
		return 0, false, newProblem(http.StatusBadRequest, "parameter", src, "%s is a sequence number from 0, or now", name)
	}
	return after, false, nil
}
