package agent

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// server serves the metrics.
type server struct {
	address string
	http    *http.Server
}

func (s *server) stop() {
	if s.http != nil {
		s.http.Close()
	}
	s.http, s.address = nil, ""
}

// serve serves the metrics where the configuration says. An address that cannot be
// had is said: the rest of the agent does not need it.
func (a *Agent) serve() {
	address := string(a.Host.Site.Agent.Listen)
	if address == a.server.address {
		return
	}
	a.server.stop()
	if address == "" {
		return
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		a.Log.Error("metrics are not served", "error", err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.Metrics.Handler())
	a.server = server{address: address, http: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelWarn),
	}}
	go func(s *http.Server) {
		if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.Log.Error("metrics are no longer served", "error", err)
		}
	}(a.server.http)
	a.Log.Info("metrics are served", "address", listener.Addr().String())
}
