"""Sums sampled stacks by the part of the program to which they belong: `stacks.py FOLDED NANOSECONDS UNIT OF`.

FOLDED has a stack and its number of samples on each line, as `inferno-collapse-perf` writes them. NANOSECONDS is the cost of all
samples together for one UNIT of the work, and OF names the process.
"""

import re
import sys

# The part of each stack: the first rule that matches one of its frames.
PARTS = [
    ("kernel: the client's TCP receives our packet", r"^(__)?netif_receive_skb"),
    ("kernel: our packet written to the device", r"tun::write_packet$|^(__sys_sendm|do_sendmmsg|__x64_sys_sendm)"),
    ("kernel: a packet read from the device", r"^(do_readv|__sys_recvm|do_recvmmsg|__x64_sys_recvm)"),
    ("kernel: calls of its own TCP", r"^__(x64_sys|sys)_(socket|connect|sendto|recvfrom|shutdown|close)|^(ksys_write|ksys_read)$"),
    ("kernel: waiting and waking", r"^(do_epoll|ep_|__x64_sys_epoll|__x64_sys_poll|do_sys_poll)"),
    ("kernel: other calls, interrupts, page faults", r"^(entry_SYSCALL|asm_|do_syscall)"),
    ("opening: SYNs and half-open connections", r"Stack>::on_syn$|half_open|handshake"),
    ("arriving: processed by its connection", r"Connection>::on_segment|tcp::Socket::process$"),
    ("arriving: lookup of the connection", r"demux|tcp::Socket::accepts$"),
    ("arriving: headers, work of the stack", r"Stack>::on_(packet|segment)|Stack>::after$|post_process|take_events|driver::receive"),
    ("sending: choice of the segment, headers", r"Stack>::(poll_transmit|transmit)|Connection>::poll_transmit|Outgoing"),
    ("timers: the next deadline, due timers", r"next_timeout|on_timeout|deadlines|Sleep|Interface::poll_(at|delay)$"),
    ("the program reads", r"poll_read$|peer::read$|Socket::recv"),
    ("the program writes", r"poll_write$|peer::write$|Socket::send"),
    ("the program closes, its task ends", r"poll_shutdown$|drop_in_place|drop_slow|Stack::release"),
    ("the program accepts, a task is created", r"end::serve|end::accept|spawn|Listener"),
    ("the program: everything else", r"end::converse|end::Client|peer::(Conversation|Step)"),
    ("arriving: headers, work of the stack", r"process_(ip|tcp)|phy::Device>::receive$"),
    ("sending: choice of the segment, headers", r"socket_egress$|TxToken>"),
    ("the driver's loop", r"driver::Driver as .*Future>::poll$|peer::serve$|Interface::poll"),
    ("tokio: scheduling and waking tasks", r"tokio::"),
    ("memory allocated and freed", r"malloc|free|calloc|realloc|unlink_chunk"),
]


def main(folded: str, nanoseconds: float, unit: str, whose: str) -> None:
    """Prints a table, with the largest cost first."""
    cost, called = (nanoseconds * 1e3, "ms/GB") if unit == "byte" else (nanoseconds / 1e3, "us")
    sums: dict[str, int] = {}
    rules = [(part, re.compile(rule)) for part, rule in PARTS]
    with open(folded, encoding="utf-8") as lines:
        for line in lines:
            stack, _, count = line.rpartition(" ")
            frames = stack.split(";")
            found = (part for part, rule in rules if any(rule.search(frame) for frame in frames))
            part = next(found, "the rest")
            sums[part] = sums.get(part, 0) + int(count)
    total = sum(sums.values())
    for part, count in sorted(sums.items(), key=lambda item: -item[1]):
        print(f"{count / total * cost:8.2f} {called}  {count / total:6.1%}  {part}")
    print(f"{cost:8.2f} {called}  {1:6.0%}  {whose}, {unit}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4])
