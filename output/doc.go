// Package output makes what leaves edm: histogram files and session files, their
// upload, and events.
//
// A histogram file has one row for each well-known name that was asked for in
// an interval: its counts, and how many clients asked, with a sketch of the
// set of clients once it is too large to identify anyone. A session file has
// one row for each response about any other name. Both are Parquet.
//
//	file.go       a file that appears whole or not at all
//	labels.go     a name in wire form → the columns label0 to label9
//	sketch.go     the set of clients of one name
//	histogram.go  rows of counts → dns_histogram-….parquet
//	block.go      session rows in columns, collected in memory
//	session.go    blocks → dns_session_block-….parquet
//	outbox.go     the folders of finished files: outbox → sent or refused
//	upload.go     what is uploaded when, and what is deleted
//	request.go    one try to upload a file, and what its answer means
//	httpsig.go    HTTP message signatures (RFC 9421)
//	keys.go       the key that signs, and the node that it names
//	event.go      a new name → a signed event
//	publish.go    events → the broker, with
//	window.go     those that are on their way
//	poison.go     what becomes of those that the broker does not take
//
// Three rules hold everywhere in it:
//
//   - No address enters. A client is a cryptopan.Pseudonym, or a hash in a
//     Sketch.
//   - Names come in wire form, lower case, uncompressed, with the final zero
//     octet, and leave in presentation form (RFC 1035 section 5.1). Presentation
//     form is printable ASCII, so all text in the files is valid UTF-8.
//   - A file appears under its own name when all of it is on disk, and never
//     replaces another. If the call that ends it returns an error, there is no
//     file.
//
// Nothing here logs or counts; the Publisher and the Uploader call what they
// were given. A file, a block and a sketch each have one owner at a time.
//
// Specifications: Apache Parquet (github.com/apache/parquet-format), sketches
// as in github.com/aggregateknowledge/hll-storage-spec version 1.
package output
