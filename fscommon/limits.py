"""Every bound of the protocol and of its programs, in one table.

Sizes are bytes, times are seconds. native/include/braidfs/limits.h holds the same values for the
data path; tests/wire/test_native_constants.py compares the two.
"""

from typing import Final

BLOCK_SIZE: Final = 4096  # unit of checksums
CHUNK_SIZE_DEFAULT: Final = 1 << 20  # unit of placement
CHUNK_SIZE_MIN: Final = 64 << 10
CHUNK_SIZE_MAX: Final = 64 << 20
STRIPE_WIDTH_DEFAULT_MAX: Final = 4
STRIPE_WIDTH_MAX: Final = 64
REPLICA_COUNT_MAX: Final = 3  # that an administrator may ask for
REPLICA_PLACES_MAX: Final = 4  # of a stripe: one more, for the copy to which a replica moves
GENERATION_SHIFT: Final = 8  # an object's number: its stripe index, above it its generation
GENERATION_MAX: Final = (1 << 24) - 1
# Bytes of one file that a target can hold, given how records lie in the object's file.
OBJECT_BYTES_MAX: Final = 8_355_967 << 20

NAME_LENGTH_MAX: Final = 255
SYMLINK_LENGTH_MAX: Final = 4095
XATTR_NAME_LENGTH_MAX: Final = 255
XATTR_VALUE_LENGTH_MAX: Final = 65536
XATTR_LIST_LENGTH_MAX: Final = 65536
LINK_COUNT_MAX: Final = 65000
FILE_SIZE_MAX: Final = (1 << 63) - 1

FRAME_BODY_LENGTH_MAX: Final = 4 << 20
FRAME_PAYLOAD_LENGTH_MAX: Final = 16 << 20
HANDSHAKE_BODY_LENGTH_MAX: Final = 4096  # before a peer is authenticated
HANDSHAKE_SECONDS_MAX: Final = 10.0
MSGPACK_DEPTH_MAX: Final = 16
CONNECTIONS_MAX: Final = 65536  # per server process, as far as its descriptors allow
CONNECTIONS_PER_KEY_MAX: Final = 1024  # with one client's key
CONNECTIONS_UNAUTHENTICATED_MAX: Final = 256
SESSIONS_MAX: Final = 16384
SESSIONS_PER_KEY_MAX: Final = 1024  # with one client's key
SESSION_OPEN_SECONDS_MAX: Final = 30.0  # from the handshake to a session
# When a peer does not read an answer for so long, its connection is closed.
UNREAD_SECONDS_MAX: Final = 60.0
# Bytes of waiting answers; above that, no more requests are read.
UNREAD_BYTES_MAX: Final = 1 << 20
# The same for one client's key: above that, its requests are answered BUSY.
UNREAD_BYTES_PER_KEY_MAX: Final = 64 << 20
REQUESTS_IN_FLIGHT_MAX: Final = 1024  # per connection
# After a reply with FLAG_SOLE, no second session is opened for so long.
SOLE_LEASE_S: Final = 0.1
# The most that may be configured; recalls of all of them fit into one reply.
LEASES_PER_SESSION_MAX: Final = 100_000
READDIR_ENTRIES_MAX: Final = 1024
BUSY_POLL_US_MAX: Final = 1000  # net::EventLoop::kBusyPollUsMax
OPEN_AHEAD_MAX: Final = 512  # names in one OPEN_AHEAD
REPLAY_MUTATIONS_MAX: Final = 65536  # kept by a client until durable
INLINE_LENGTH_MAX: Final = 4096  # bytes of a file stored in its inode's record
DELETE_ALL_MAX: Final = 256  # objects in one DELETE_ALL
DROP_NAMES_MAX: Final = 512  # names in one DROP_NAMES
FETCH_MAX: Final = 256  # objects in one FETCH
FETCH_LENGTH_MAX: Final = 1 << 20  # bytes of each object in a FETCH
# For copy_file_range: with shorter ranges the kernel is as fast.
COPY_LENGTH_MIN: Final = 128 << 10
