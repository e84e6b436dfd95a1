package output

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edm/receiver"
)

// What fails a few times is delivered in the end, all of it, whatever it was
// that failed.
func TestUploadFails(t *testing.T) {
	const files, faults = 3, 4
	read := func(w http.ResponseWriter, req *http.Request) { io.Copy(io.Discard, req.Body) }
	raw := func(t testing.TB, answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			read(w, req)
			conn := hijack(t, w)
			io.WriteString(conn, answer)
			conn.Close()
		}
	}
	f := func(name, code, problem string, fault func(t testing.TB, p *post) http.HandlerFunc) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPost(t)
				p.minutes(files, 100_000)
				p.onlyHTTP1 = true
				dial := p.dial
				serve := fault(t, p)
				dialled, served := 0, 0
				if faulty := p.dial; serve == nil {
					p.dial = func() (net.Conn, error) {
						if dialled++; dialled <= faults {
							return faulty()
						}
						return dial()
					}
				}
				p.serve = func(w http.ResponseWriter, req *http.Request) {
					if served++; serve != nil && served <= faults {
						serve(w, req)
						return
					}
					p.receiver.ServeHTTP(w, req)
				}
				p.start()
				time.Sleep(time.Hour)
				synctest.Wait()
				p.checkWhole(0, files, 0)
				p.checkCodes(map[string]int{code: faults, "201": files})
				if len(p.states) == 0 || !strings.Contains(p.states[0], problem) || p.states[len(p.states)-1] != "" {
					t.Errorf("states %.500q, want %q at first and none at last", p.states[:1], problem)
				}
				for _, s := range p.states {
					if len(s) > 700 || strings.ContainsAny(s, "\x00\n\r") {
						t.Errorf("a state holds what came: %q", s)
					}
				}
			})
		})
	}
	status := func(status int, header ...string) func(t testing.TB, p *post) http.HandlerFunc {
		return func(testing.TB, *post) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				read(w, req)
				for i := 0; i < len(header); i += 2 {
					w.Header().Set(header[i], header[i+1])
				}
				w.WriteHeader(status)
				if status >= 200 && status != 204 && status != 304 {
					io.WriteString(w, "a reason\x00\x1b[31m\n"+strings.Repeat("long ", 1000))
				}
			}
		}
	}
	for _, n := range []int{200, 202, 204, 304, 403, 408, 409, 411, 415, 429, 451, 500, 502, 503, 504, 599, 999} {
		f(fmt.Sprint(n), fmt.Sprint(n), fmt.Sprintf(`"%d`, n), status(n))
	}
	for _, n := range []int{301, 302, 303, 307, 308} {
		f(fmt.Sprint(n), fmt.Sprint(n), fmt.Sprintf(`"%d`, n), status(n, "Location", "https://"+postHost+receiver.Path))
	}
	f("cut in the body", "error", "closed pipe", func(t testing.TB, _ *post) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			io.ReadFull(req.Body, make([]byte, 1000))
			hijack(t, w).Close()
		}
	})
	f("no answer", "error", "EOF", func(t testing.TB, _ *post) http.HandlerFunc { return raw(t, "") })
	f("half a status", "error", "EOF", func(t testing.TB, _ *post) http.HandlerFunc { return raw(t, "HTTP/1.1 201") })
	f("half a header", "error", "malformed", func(t testing.TB, _ *post) http.HandlerFunc {
		return raw(t, "HTTP/1.1 201 Created\r\nContent-Le")
	})
	f("half an answer", "error", "ends early", func(t testing.TB, _ *post) http.HandlerFunc {
		return raw(t, "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf")
	})
	f("half a refusal", "error", "ends early", func(t testing.TB, _ *post) http.HandlerFunc {
		return raw(t, "HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal")
	})
	f("garbage", "error", "malformed", func(t testing.TB, _ *post) http.HandlerFunc {
		return raw(t, strings.Repeat("\x00\xffgarbage ", 1000)+"\r\n\r\n")
	})
	f("endless header", "error", "", func(t testing.TB, _ *post) http.HandlerFunc {
		return raw(t, "HTTP/1.1 201 Created\r\nX: "+strings.Repeat("x", longestHeader)+"\r\n\r\n")
	})
	hang := func(w http.ResponseWriter, req *http.Request) {
		<-req.Context().Done()
		panic(http.ErrAbortHandler) // or it would answer while the connection closes
	}
	f("hangs with the body", "timeout", "neither took nor sent", func(t testing.TB, _ *post) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			conn := hijack(t, w)
			time.Sleep(responseWait + 100*time.Millisecond)
			conn.Close()
		}
	})
	f("hangs after the body", "timeout", "neither took nor sent", func(testing.TB, *post) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) { read(w, req); hang(w, req) }
	})
	f("hangs in the answer", "timeout", "neither took nor sent", func(testing.TB, *post) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			read(w, req)
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(201)
			w.(http.Flusher).Flush()
			hang(w, req)
		}
	})
	f("no connection", "error", "refused", func(_ testing.TB, p *post) http.HandlerFunc {
		p.dial = func() (net.Conn, error) { return nil, errRefusedConn }
		return nil
	})
	f("another protocol", "error", "TLS", func(_ testing.TB, p *post) http.HandlerFunc {
		p.dial = func() (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				go io.Copy(io.Discard, theirs)
				io.WriteString(theirs, "SSH-2.0-garbage\r\n")
				theirs.Close()
			}()
			return ours, nil
		}
		return nil
	})
	f("hangs at the handshake", "timeout", "timeout", func(_ testing.TB, p *post) http.HandlerFunc {
		p.dial = func() (net.Conn, error) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			return ours, nil
		}
		return nil
	})
}

// The same over HTTP/2, where there is no connection to cut.
func TestUploadFailsHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t)
		p.minutes(2, 300_000)
		n := 0
		p.serve = func(w http.ResponseWriter, req *http.Request) {
			switch n++; n {
			case 1:
				io.ReadFull(req.Body, make([]byte, 1000))
				panic(http.ErrAbortHandler)
			case 2:
				io.Copy(io.Discard, req.Body)
				<-req.Context().Done()
				panic(http.ErrAbortHandler)
			case 3:
				io.Copy(io.Discard, req.Body)
				w.WriteHeader(201)
				io.WriteString(w, "half")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			case 4:
				<-req.Context().Done() // takes as much as the window has
				panic(http.ErrAbortHandler)
			default:
				p.receiver.ServeHTTP(w, req)
			}
		}
		p.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		p.checkWhole(0, 2, 0)
		p.checkCodes(map[string]int{"error": 2, "timeout": 2, "201": 2})
	})
}
