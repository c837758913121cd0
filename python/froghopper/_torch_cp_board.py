# SPDX-License-Identifier: Apache-2.0
"""A board in shared memory on which the ranks of one host write a few words for one another. On a host of 4 H200 that
takes 48 us, over gloo 586 us (700 bytes, one exchange after the other).

Every rank has two places on the board, which it uses in turns, and writes to none but these. A rank that writes its
words of call n + 2 has read those of call n + 1 from all ranks, so all have read its words of call n, which it now
overwrites. A checksum over number and words tells a reader that it has seen all of what was written, in whatever order
the bytes came to it.
"""
import contextlib
import datetime
import fcntl
import mmap
import os
import struct
import time
import weakref
import zlib

from froghopper._errors import Internal, LaunchFailed

HEADER = struct.Struct("<QII")  # number of the call, bytes of the words, checksum
SPINNING = 300e-6  # seconds of polling before the processor is given up: several times what an exchange takes
PAUSE = 50e-6  # seconds between two looks after that
LOOK_FOR_LIFE = 0.05  # seconds between two looks whether a silent rank still lives
FOLDER = "/dev/shm"


class Board:
    """Of one group. A file that has no name any more once all ranks have opened it."""

    def __init__(self, file: int, ranks: int, rank: int, most_bytes: int, timeout: datetime.timedelta):
        weakref.finalize(self, os.close, file)
        self.file, self.ranks, self.rank = file, ranks, rank
        self.place = HEADER.size + most_bytes
        self.seconds = timeout.total_seconds()
        self.number = 0
        self.memory = mmap.mmap(file, size_of(ranks, most_bytes))
        # The system drops the lock with the process or the board, which is how others see that a rank is gone.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    def exchange(self, said: bytes) -> list[bytes]:
        """What each rank says, rank 0 first. LaunchFailed where one is gone, or says nothing within the timeout."""
        if len(said) > self.place - HEADER.size:
            raise Internal(f"rank {self.rank} has {len(said)} bytes to say to its group, more than a board takes. "
                           "Report it.")
        self.number += 1
        at = self.at(self.rank)
        self.memory[at + HEADER.size:at + HEADER.size + len(said)] = said
        self.memory[at:at + HEADER.size] = HEADER.pack(self.number, len(said), self.checksum(said))
        return [said if rank == self.rank else self.heard(rank) for rank in range(self.ranks)]

    def at(self, rank: int) -> int: return (2 * rank + self.number % 2) * self.place

    def checksum(self, said: bytes) -> int: return zlib.crc32(said, self.number & 0xffffffff)

    def heard(self, rank: int) -> bytes:
        """What that rank says in this call, as soon as it is there."""
        begin = time.monotonic()
        next_look = begin + LOOK_FOR_LIFE
        while True:
            said = self.read(rank)
            if said is not None: return said
            now = time.monotonic()
            if now > next_look:
                if self.is_gone(rank):
                    said = self.read(rank)  # it may have spoken before it went
                    if said is not None: return said
                    raise LaunchFailed(f"group must have ranks that answer, but rank {rank} of {self.ranks} has died "
                                       "or left it. End all ranks and make a new group.")
                if now > begin + self.seconds:
                    raise LaunchFailed(f"group must have ranks that answer, but rank {rank} of {self.ranks} has said "
                                       f"nothing for {self.seconds:g} seconds: it hangs or calls something else. End "
                                       "all ranks and make a new group.")
                next_look = now + LOOK_FOR_LIFE
            time.sleep(0 if now < begin + SPINNING else PAUSE)

    def read(self, rank: int) -> bytes | None:
        at = self.at(rank)
        number, size, checksum = HEADER.unpack_from(self.memory, at)
        if number != self.number or size > self.place - HEADER.size: return None
        said = self.memory[at + HEADER.size:at + HEADER.size + size]
        return said if self.checksum(said) == checksum else None

    def is_gone(self, rank: int) -> bool:
        try: fcntl.lockf(self.file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, rank)
        except OSError: return False
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, rank)
        return True


def size_of(ranks: int, most_bytes: int) -> int: return 2 * ranks * (HEADER.size + most_bytes)


def new_file(ranks: int, most_bytes: int) -> str:
    """The path of an empty board, or "" where there is no shared memory."""
    path = f"{FOLDER}/froghopper-{os.urandom(16).hex()}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try: os.posix_fallocate(file, 0, size_of(ranks, most_bytes))  # a full one says so now, not by SIGBUS
        finally: os.close(file)
    except OSError:
        remove(path)
        return ""
    return path


def remove(path: str) -> None:
    with contextlib.suppress(OSError): os.unlink(path)


def opened(path: str, ranks: int, rank: int, most_bytes: int, timeout: datetime.timedelta) -> Board | None:
    """The board that rank 0 has made there; None where it is not on this host."""
    if not path: return None
    try: return Board(os.open(path, os.O_RDWR | os.O_CLOEXEC), ranks, rank, most_bytes, timeout)
    except OSError: return None
