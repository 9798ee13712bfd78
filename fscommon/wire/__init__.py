"""The wire: the op table, the frame header, the bodies and their codec. Sans-IO throughout."""
