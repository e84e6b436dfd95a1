package dnstap

import (
	"encoding/binary"
	"fmt"

	framestream "github.com/farsightsec/golang-framestream"
)

// ContentType is the Frame Streams content type of dnstap.
const ContentType = "protobuf:dnstap.Dnstap"

const (
	lengthLen = 4 // octets of a frame's length
	escapeLen = 8 // octets of a control frame's escape and length

	// MaxFrame is the largest length that can be a frame's. A larger one means
	// that the place in the stream is lost.
	MaxFrame = 16 << 20
	// MaxControl is the largest control frame with its escape and length.
	MaxControl = escapeLen + framestream.CONTROL_FRAME_LENGTH_MAX
)

// A Chunk is a buffer that holds whole data frames as they came off the wire,
// each behind its length of four octets.
//
// Whoever received a Chunk owns it, and with it all views into it, until it
// gives it back.
type Chunk struct {
	Buf []byte // all of it, for reading into
	N   int    // octets of whole frames at its start
}

// Frames returns the frames for use with Next.
func (c *Chunk) Frames() []byte { return c.Buf[:c.N] }

// Next splits the first frame's content from the frames behind it. The frames
// must be whole, as Scan finds them.
func Next(frames []byte) (content, rest []byte) {
	n := lengthLen + int(binary.BigEndian.Uint32(frames))
	return frames[lengthLen:n:n], frames[n:]
}

// A Stop is why Scan went no further.
type Stop uint8

const (
	Partial  Stop = iota // the bytes end, perhaps inside a frame
	Control              // a whole control frame follows
	Oversize             // a data frame above the limit follows
	Lost                 // what follows cannot be a frame
)

// Scan counts the octets of the whole data frames at the start of b, and says
// what stands behind them. A data frame of more than limit octets is Oversize.
func Scan(b []byte, limit int) (n int, stop Stop) {
	for len(b)-n >= lengthLen {
		l := binary.BigEndian.Uint32(b[n:])
		switch {
		case l == 0:
			return n, scanControl(b[n:])
		case l > MaxFrame:
			return n, Lost
		case int(l) > limit:
			return n, Oversize
		case int(l) > len(b)-n-lengthLen:
			return n, Partial
		}
		n += lengthLen + int(l)
	}
	return n, Partial
}

func scanControl(b []byte) Stop {
	if len(b) < escapeLen {
		return Partial
	}
	l := int(binary.BigEndian.Uint32(b[lengthLen:]))
	switch {
	case l < 4 || l > framestream.CONTROL_FRAME_LENGTH_MAX:
		return Lost
	case l > len(b)-escapeLen:
		return Partial
	}
	return Control
}

// FrameLen returns the length of the data frame at the start of b, without the
// four octets of the length itself.
func FrameLen(b []byte) int { return int(binary.BigEndian.Uint32(b)) }

// DecodeControl reads the control frame at the start of b, for which Scan said
// Control, and returns its length with escape.
//
// Fields other than content types are skipped: fstrm may add some, and
// framestream.ControlFrame.Decode refuses them, as it does an empty content
// type.
func DecodeControl(b []byte) (c framestream.ControlFrame, n int, err error) {
	n = escapeLen + int(binary.BigEndian.Uint32(b[lengthLen:]))
	c.ControlType = binary.BigEndian.Uint32(b[escapeLen:])
	for f := b[escapeLen+4 : n]; len(f) > 0; {
		if len(f) < 8 || binary.BigEndian.Uint32(f[4:]) > uint32(len(f)-8) {
			return c, n, fmt.Errorf("control frame of type %d has a field that does not fit it", c.ControlType)
		}
		end := 8 + int(binary.BigEndian.Uint32(f[4:]))
		if binary.BigEndian.Uint32(f) == framestream.CONTROL_FIELD_CONTENT_TYPE {
			c.ContentTypes = append(c.ContentTypes, f[8:end:end])
		}
		f = f[end:]
	}
	return c, n, nil
}
