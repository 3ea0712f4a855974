/* Drives the library as packetdrill does: loads it with the same flags, fills the table, and calls its
 * functions in the order in which packetdrill's table has them. Prints one line per check that fails; the
 * status is their number. It is meant to run with the library in LD_PRELOAD too. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct interface {
	void *userdata;
	void (*free)(void *);
	int (*socket)(void *, int, int, int);
	int (*bind)(void *, int, const struct sockaddr *, socklen_t);
	int (*listen)(void *, int, int);
	int (*accept)(void *, int, struct sockaddr *, socklen_t *);
	int (*connect)(void *, int, const struct sockaddr *, socklen_t);
	ssize_t (*read)(void *, int, void *, size_t);
	ssize_t (*readv)(void *, int, const struct iovec *, int);
	ssize_t (*recv)(void *, int, void *, size_t, int);
	ssize_t (*recvfrom)(void *, int, void *, size_t, int, struct sockaddr *, socklen_t *);
	ssize_t (*recvmsg)(void *, int, struct msghdr *, int);
	ssize_t (*write)(void *, int, const void *, size_t);
	ssize_t (*writev)(void *, int, const struct iovec *, int);
	ssize_t (*send)(void *, int, const void *, size_t, int);
	ssize_t (*sendto)(void *, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t (*sendmsg)(void *, int, const struct msghdr *, int);
	int (*fcntl)(void *, int, int, ...);
	int (*ioctl)(void *, int, unsigned long, ...);
	int (*close)(void *, int);
	int (*shutdown)(void *, int, int);
	int (*getsockopt)(void *, int, int, int, void *, socklen_t *);
	int (*setsockopt)(void *, int, int, int, const void *, socklen_t);
	int (*poll)(void *, struct pollfd *, nfds_t, int);
	int (*netdev_send)(void *, const void *, size_t);
	int (*netdev_receive)(void *, void *, size_t *, long long *);
	int (*usleep)(void *, useconds_t);
	int (*gettimeofday)(void *, struct timeval *, struct timezone *);
	int (*epoll_create)(void *, int);
	int (*epoll_ctl)(void *, int, int, int, struct epoll_event *);
	int (*epoll_wait)(void *, int, struct epoll_event *, int, int);
	int (*pipe)(void *, int[2]);
	int (*splice)(void *, int, loff_t *, int, loff_t *, size_t, unsigned);
};

static struct interface i;
static void *u;
static int failed;

#define CHECK(what, holds)                                                        \
	do {                                                                      \
		if (!(holds)) {                                                   \
			printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, what, errno); \
			failed++;                                                 \
		}                                                                 \
	} while (0)

/* ---- packets ---- */

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16 };

struct segment {
	uint32_t seq, ack;
	int flags;
	size_t len;
};

static uint32_t sum_of(const uint8_t *bytes, size_t len, uint32_t sum)
{
	for (size_t at = 0; at < len; at++)
		sum += at % 2 ? bytes[at] : (uint32_t)bytes[at] << 8;
	return sum;
}

static uint16_t folded(uint32_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static void put16(uint8_t *to, uint16_t value)
{
	to[0] = value >> 8;
	to[1] = value;
}

static void put32(uint8_t *to, uint32_t value)
{
	put16(to, value >> 16);
	put16(to + 2, value);
}

static uint32_t get32(const uint8_t *from)
{
	return (uint32_t)from[0] << 24 | from[1] << 16 | from[2] << 8 | from[3];
}

/* A segment from 192.0.2.1:port to 192.168.0.1:8080. */
static void arrive(uint16_t port, uint16_t to, struct segment s, const char *payload)
{
	uint8_t p[1600] = {0};
	size_t total = 40 + s.len;

	p[0] = 0x45;
	put16(p + 2, total);
	p[8] = 64;
	p[9] = IPPROTO_TCP;
	put32(p + 12, 0xc0000201);
	put32(p + 16, 0xc0a80001);
	put16(p + 10, folded(sum_of(p, 20, 0)));
	put16(p + 20, port);
	put16(p + 22, to);
	put32(p + 24, s.seq);
	put32(p + 28, s.ack);
	p[32] = 5 << 4;
	p[33] = s.flags;
	put16(p + 34, 30000);
	if (payload)
		memcpy(p + 40, payload, s.len);
	put16(p + 36, folded(sum_of(p + 20, 20 + s.len, sum_of(p + 12, 8, IPPROTO_TCP + 20 + s.len))));
	CHECK("netdev_send", i.netdev_send(u, p, total) == 0);
}

static struct segment left(long long *when)
{
	uint8_t p[2048];
	size_t len = sizeof(p);
	struct segment s = {0};

	CHECK("netdev_receive", i.netdev_receive(u, p, &len, when) == 0);
	if (len < 40)
		return s;
	s.seq = get32(p + 24);
	s.ack = get32(p + 28);
	s.flags = p[33];
	s.len = len - 20 - (p[32] >> 4) * 4;
	return s;
}

/* Takes packets until one acknowledges so much. */
static void acknowledged(uint32_t ack)
{
	for (int packets = 0; packets < 100; packets++)
		if (left(NULL).ack == ack)
			return;
	CHECK("an acknowledgement", 0);
}

static long long now(void)
{
	struct timeval t;

	CHECK("gettimeofday", i.gettimeofday(u, &t, NULL) == 0);
	return t.tv_sec * 1000000LL + t.tv_usec;
}

/* ---- a call that blocks, on a second thread ---- */

static int reader_fd;
static ssize_t reader_count;
static long long reader_ended;
static volatile int reader_tid;

static void *reader(void *unused)
{
	char byte[10];

	reader_tid = gettid();
	reader_count = i.read(u, reader_fd, byte, sizeof(byte));
	reader_ended = now();
	return unused;
}

/* packetdrill takes a thread that sleeps for one that is blocked in its call. */
static void wait_until_it_sleeps(void)
{
	char path[64], text[256], *state;

	for (int tries = 0; tries < 5000; tries++) {
		FILE *stat;

		usleep(1000);
		if (!reader_tid)
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", reader_tid);
		stat = fopen(path, "r");
		if (!stat)
			return;
		state = fgets(text, sizeof(text), stat) ? strrchr(text, ')') : NULL;
		fclose(stat);
		if (state && state[2] == 'S')
			return;
	}
	CHECK("the blocked call sleeps", 0);
}

/* ---- packetdrill's two threads: a lock of the program, and a call that blocks ---- */

static pthread_mutex_t program = PTHREAD_MUTEX_INITIALIZER;
static long long call_at, call_ended;
static volatile int call_done;

static long long real_micros(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* The thread that makes the calls: it spins until the call is due, makes it without the lock, asks for the time, and
 * records it under the lock. */
static void *caller(void *unused)
{
	char byte[10];
	long long ended, busy;
	int spins = 0;

	pthread_mutex_lock(&program);
	while (now() < call_at && spins < 100000)
		spins++;
	CHECK("the clock moves for the thread that spins", spins < 100000);
	pthread_mutex_unlock(&program);
	reader_tid = gettid();
	reader_count = i.read(u, reader_fd, byte, sizeof(byte));
	ended = now();
	/* A machine with other work to do. */
	busy = real_micros();
	while (real_micros() - busy < 1000)
		;
	pthread_mutex_lock(&program);
	call_ended = ended;
	call_done = 1;
	pthread_mutex_unlock(&program);
	return unused;
}

/* The main thread holds the lock except where it waits, and expects the call to be over once it has waited. */
static void blocking_calls(int fd, uint32_t seq, uint32_t ack)
{
	pthread_t thread;
	long long before;

	reader_fd = fd;
	for (int round = 0; round < 20; round++) {
		call_at = now() + 20;
		call_done = reader_tid = 0;
		CHECK("second thread", pthread_create(&thread, NULL, caller, NULL) == 0);
		wait_until_it_sleeps();
		pthread_mutex_lock(&program);
		before = now();
		arrive(4000, 8080, (struct segment){.seq = seq + round, .ack = ack, .flags = ACK | PSH, .len = 1}, "x");
		pthread_mutex_unlock(&program);
		CHECK("usleep", i.usleep(u, 100000) == 0);
		pthread_mutex_lock(&program);
		CHECK("the call is over when the clock goes on", call_done && reader_count == 1);
		CHECK("at the time of the segment", call_ended - before < 4000);
		pthread_mutex_unlock(&program);
		pthread_join(thread, NULL);
	}
}

static int splice_from, splice_to;

static void *splicer(void *unused)
{
	reader_tid = gettid();
	reader_count = i.splice(u, splice_from, NULL, splice_to, NULL, 100000, 0);
	return unused;
}

static int writer_fd;

static void *fast_writer(void *unused)
{
	struct sockaddr_in remote = {.sin_family = AF_INET, .sin_port = htons(80)};
	char data[1500] = {0};

	inet_pton(AF_INET, "192.0.2.1", &remote.sin_addr);
	reader_tid = gettid();
	reader_count =
	    i.sendto(u, writer_fd, data, sizeof(data), MSG_FASTOPEN, (struct sockaddr *)&remote, sizeof(remote));
	return unused;
}

int main(int argc, char **argv)
{
	void (*init)(const char *, struct interface *);
	void *library;
	struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons(8080)};
	struct sockaddr_in remote = {.sin_family = AF_INET, .sin_port = htons(80)};
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	char buffer[4096] = "0123456789";
	struct iovec vector[2] = {{buffer, 5}, {buffer + 5, 5}};
	struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2};
	struct tcp_info info;
	struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
	struct iovec hole = {NULL, 10};
	struct pollfd polled;
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 42};
	struct segment s;
	long long when = 0, before;
	uint32_t iss;
	int listener, fd, client, epfd, fds[2], number, one = 1;
	pthread_t thread;

	if (argc < 2)
		return 99;
	library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_DEEPBIND);
	if (!library) {
		printf("dlopen: %s\n", dlerror());
		return 98;
	}
	*(void **)&init = dlsym(library, "packetdrill_interface_init");
	if (!init)
		return 97;
	init(argc > 2 ? argv[2] : NULL, &i);
	u = i.userdata;

	before = now();
	CHECK("usleep", i.usleep(u, 1000) == 0);
	number = now() - before;
	CHECK("the clock is virtual", number >= 1000 && number < 1010);

	/* passive open */
	listener = i.socket(u, AF_INET, SOCK_STREAM, IPPROTO_TCP);
	CHECK("socket", listener >= 0);
	CHECK("setsockopt", i.setsockopt(u, listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	inet_pton(AF_INET, "192.168.0.1", &local.sin_addr);
	inet_pton(AF_INET, "192.0.2.1", &remote.sin_addr);
	CHECK("bind", i.bind(u, listener, (struct sockaddr *)&local, sizeof(local)) == 0);
	CHECK("listen", i.listen(u, listener, 1) == 0);
	arrive(4000, 8080, (struct segment){.seq = 100, .flags = SYN}, NULL);
	s = left(&when);
	CHECK("SYN-ACK", s.flags == (SYN | ACK) && s.ack == 101);
	CHECK("the time of a packet is on the same clock", when > before && when <= now());
	iss = s.seq;
	arrive(4000, 8080, (struct segment){.seq = 101, .ack = iss + 1, .flags = ACK}, NULL);
	fd = i.accept(u, listener, (struct sockaddr *)&from, &len);
	CHECK("accept", fd >= 0 && len == sizeof(from) && ntohs(from.sin_port) == 4000);
	CHECK("TCP_INFO by the table", (len = sizeof(info)) && i.getsockopt(u, fd, SOL_TCP, TCP_INFO, &info, &len) == 0);
	len = sizeof(buffer);
	CHECK("TCP_INFO of Linux 6.18", i.getsockopt(u, fd, SOL_TCP, TCP_INFO, buffer, &len) == 0 && len == 280);
	CHECK("ESTABLISHED", info.tcpi_state == TCP_ESTABLISHED && info.tcpi_snd_cwnd == 10);

	/* reading, six ways */
	arrive(4000, 8080, (struct segment){.seq = 101, .ack = iss + 1, .flags = ACK | PSH, .len = 60},
	       "0123456789012345678901234567890123456789012345678901234567890");
	CHECK("ioctl", i.ioctl(u, fd, FIONREAD, &number) == 0 && number == 60);
	CHECK("read", i.read(u, fd, buffer, 10) == 10 && !memcmp(buffer, "0123456789", 10));
	CHECK("readv", i.readv(u, fd, vector, 2) == 10);
	CHECK("recv", i.recv(u, fd, buffer, 10, MSG_PEEK) == 10 && i.recv(u, fd, buffer, 10, 0) == 10);
	CHECK("recvfrom", i.recvfrom(u, fd, buffer, 10, 0, NULL, NULL) == 10);
	CHECK("recvmsg", i.recvmsg(u, fd, &message, 0) == 10);
	polled = (struct pollfd){.fd = fd, .events = POLLIN | POLLOUT};
	CHECK("poll", i.poll(u, &polled, 1, 0) == 1 && polled.revents == (POLLIN | POLLOUT));
	s = left(NULL);
	CHECK("an acknowledgement", s.flags == ACK && s.ack == 161);

	/* a pipe of the kernel's, and splice both ways */
	CHECK("pipe", i.pipe(u, fds) == 0);
	CHECK("splice out", i.splice(u, fd, NULL, fds[1], NULL, 10, 0) == 10);
	CHECK("splice in", i.splice(u, fds[0], NULL, fd, NULL, 10, 0) == 10);
	s = left(NULL);
	CHECK("what was spliced leaves", s.len == 10 && s.seq == iss + 1);
	CHECK("setsockopt TCP_NODELAY", i.setsockopt(u, fd, SOL_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	CHECK("splice of a pipe without offsets, by pointers to zero",
	      i.write(u, fds[1], "12345", 5) == 5 && i.splice(u, fds[0], &(loff_t){0}, fd, &(loff_t){0}, 5, 0) == 5);
	s = left(NULL);
	CHECK("it leaves", s.len == 5);
	CHECK("splice of an empty pipe, no waiting",
	      i.splice(u, fds[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
	CHECK("descriptors of the kernel", i.write(u, fds[1], "x", 1) == 1 && i.read(u, fds[0], buffer, 1) == 1);

	/* writing, five ways */
	CHECK("write", i.write(u, fd, buffer, 10) == 10);
	CHECK("writev", i.writev(u, fd, vector, 2) == 10);
	CHECK("send", i.send(u, fd, buffer, 10, 0) == 10);
	CHECK("sendto", i.sendto(u, fd, buffer, 10, 0, NULL, 0) == 10);
	message = (struct msghdr){.msg_iov = vector, .msg_iovlen = 2};
	CHECK("sendmsg", i.sendmsg(u, fd, &message, 0) == 10);
	for (number = 0; number < 5; number++) {
		s = left(NULL);
		CHECK("a segment per write", s.len == 10 && s.flags == (ACK | PSH));
	}
	arrive(4000, 8080, (struct segment){.seq = 161, .ack = iss + 66, .flags = ACK}, NULL);

	/* a call that waits: on a second thread, woken by a segment at a known time */
	reader_fd = fd;
	CHECK("second thread", pthread_create(&thread, NULL, reader, NULL) == 0);
	wait_until_it_sleeps();
	CHECK("usleep", i.usleep(u, 200000) == 0);
	before = now();
	arrive(4000, 8080, (struct segment){.seq = 161, .ack = iss + 66, .flags = ACK | PSH, .len = 3}, "abc");
	CHECK("usleep", i.usleep(u, 500000) == 0);
	pthread_join(thread, NULL);
	CHECK("the blocked read returns", reader_count == 3);
	CHECK("at the time of the segment", reader_ended - before < 100);
	s = left(NULL);
	CHECK("an acknowledgement", s.flags == ACK && s.ack == 164);

	blocking_calls(fd, 164, iss + 66);
	acknowledged(184);

	/* memory that is not there */
	CHECK("write", i.write(u, fd, NULL, 10) == -1 && errno == EFAULT);
	CHECK("write of nothing", i.write(u, fd, NULL, 0) == 0);
	CHECK("writev", i.writev(u, fd, &hole, 1) == -1 && errno == EFAULT);
	CHECK("send", i.send(u, fd, NULL, 10, 0) == -1 && errno == EFAULT);
	CHECK("sendto", i.sendto(u, fd, NULL, 10, 0, NULL, 0) == -1 && errno == EFAULT);
	CHECK("bind", i.bind(u, fd, NULL, sizeof(local)) == -1 && errno == EFAULT);
	CHECK("setsockopt", i.setsockopt(u, fd, SOL_TCP, TCP_NODELAY, NULL, 4) == -1 && errno == EFAULT);
	len = sizeof(info);
	CHECK("getsockopt", i.getsockopt(u, fd, SOL_TCP, TCP_INFO, NULL, &len) == -1 && errno == EFAULT);
	arrive(4000, 8080, (struct segment){.seq = 184, .ack = iss + 66, .flags = ACK | PSH, .len = 3}, "abc");
	CHECK("read", i.read(u, fd, NULL, 10) == -1 && errno == EFAULT);
	CHECK("readv", i.readv(u, fd, &hole, 1) == -1 && errno == EFAULT);
	CHECK("recvmsg", i.recvmsg(u, fd, &(struct msghdr){.msg_iov = &hole, .msg_iovlen = 1}, 0) == -1 && errno == EFAULT);
	CHECK("the data waits", i.read(u, fd, buffer, 10) == 3 && !memcmp(buffer, "abc", 3));
	acknowledged(187);

	/* an address without a family */
	CHECK("Fast Open to nowhere", i.sendto(u, fd, buffer, 10, MSG_FASTOPEN, &nowhere, sizeof(nowhere)) == -1 && errno == EOPNOTSUPP);

	/* splice: a pipe with little room, and one that another thread fills */
	for (int n = 0; n < 5; n++)
		arrive(4000, 8080, (struct segment){.seq = 187 + n * 1000, .ack = iss + 66, .flags = ACK | PSH, .len = 1000}, buffer);
	number = fcntl(fds[1], F_GETPIPE_SZ) - 4096;
	for (int at = 0; at < number; at += sizeof(buffer))
		CHECK("a pipe almost full", write(fds[1], buffer, sizeof(buffer)) == sizeof(buffer));
	CHECK("splice of what the pipe takes", i.splice(u, fd, NULL, fds[1], NULL, 100000, 0) == 4096);
	CHECK("splice to a full pipe", i.splice(u, fd, NULL, fds[1], NULL, 100000, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
	for (int at = 0; at < number + 4096; at += len) {
		len = read(fds[0], buffer, sizeof(buffer));
		CHECK("the pipe has it all", (int)len > 0);
	}
	CHECK("the rest waits", i.read(u, fd, buffer, sizeof(buffer)) == 904);
	acknowledged(5187);
	splice_from = fds[0];
	splice_to = fd;
	reader_tid = 0;
	CHECK("second thread", pthread_create(&thread, NULL, splicer, NULL) == 0);
	wait_until_it_sleeps();
	CHECK("write to a pipe", i.write(u, fds[1], "01234567", 8) == 8);
	CHECK("usleep", i.usleep(u, 1000) == 0);
	pthread_join(thread, NULL);
	CHECK("splice of what came later", reader_count == 8);
	s = left(NULL);
	CHECK("it leaves", s.len == 8);
	arrive(4000, 8080, (struct segment){.seq = 5187, .ack = iss + 74, .flags = ACK}, NULL);

	/* O_NONBLOCK, epoll, shutdown */
	CHECK("fcntl", i.fcntl(u, fd, F_SETFL, i.fcntl(u, fd, F_GETFL, 0) | O_NONBLOCK) == 0);
	CHECK("EAGAIN", i.read(u, fd, buffer, 10) == -1 && errno == EAGAIN);
	epfd = i.epoll_create(u, 1);
	CHECK("epoll_create", epfd >= 0);
	CHECK("epoll_ctl", i.epoll_ctl(u, epfd, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK("epoll_wait, nothing", i.epoll_wait(u, epfd, &event, 1, 100) == 0);
	arrive(4000, 8080, (struct segment){.seq = 5187, .ack = iss + 74, .flags = FIN | ACK}, NULL);
	CHECK("epoll_wait", i.epoll_wait(u, epfd, &event, 1, -1) == 1 && event.data.u64 == 42 && event.events == EPOLLIN);
	CHECK("end of the stream", i.read(u, fd, buffer, 10) == 0);
	s = left(NULL);
	CHECK("the FIN is acknowledged", s.flags == ACK && s.ack == 5188);
	CHECK("shutdown", i.shutdown(u, fd, SHUT_WR) == 0);
	s = left(NULL);
	CHECK("FIN", s.flags == (FIN | ACK));
	arrive(4000, 8080, (struct segment){.seq = 5188, .ack = iss + 75, .flags = ACK}, NULL);
	CHECK("close", i.close(u, epfd) == 0 && i.close(u, fd) == 0);
	CHECK("closed", i.close(u, fd) == -1 && errno == EBADF);

	/* active open, non-blocking, refused */
	client = i.socket(u, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP);
	CHECK("connect", i.connect(u, client, (struct sockaddr *)&remote, sizeof(remote)) == -1 && errno == EINPROGRESS);
	s = left(&when);
	CHECK("SYN", s.flags == SYN);
	before = when;
	s = left(&when);
	CHECK("SYN again after a second", s.flags == SYN && when - before == 1000000);

	/* a writer that waits with more than the SYN takes: nothing acknowledges the SYN-ACK before that */
	writer_fd = i.socket(u, AF_INET, SOCK_STREAM, IPPROTO_TCP);
	local.sin_port = htons(8081);
	CHECK("bind", i.bind(u, writer_fd, (struct sockaddr *)&local, sizeof(local)) == 0);
	CHECK("no cookie", i.setsockopt(u, writer_fd, SOL_TCP, TCP_FASTOPEN_NO_COOKIE, &one, sizeof(one)) == 0);
	reader_tid = 0;
	CHECK("second thread", pthread_create(&thread, NULL, fast_writer, NULL) == 0);
	wait_until_it_sleeps();
	s = left(NULL);
	CHECK("SYN with a part of the data", s.flags == SYN && s.len > 0 && s.len < 1500);
	iss = s.seq + 1 + s.len;
	arrive(80, 8081, (struct segment){.seq = 700, .ack = iss, .flags = SYN | ACK}, NULL);
	s = left(NULL);
	CHECK("the next segment has the rest", s.len > 0 && s.seq == iss && s.ack == 701);
	pthread_join(thread, NULL);
	CHECK("all is written", reader_count == 1500);
	CHECK("close", i.close(u, writer_fd) == 0);

	/* what goes past the table: only with the library in LD_PRELOAD */
	if (getenv("LD_PRELOAD")) {
		int file = open("/proc/self/cmdline", O_RDONLY);

		len = sizeof(info);
		CHECK("TCP_INFO by libc", getsockopt(client, SOL_TCP, TCP_INFO, &info, &len) == 0);
		CHECK("SYN-SENT", info.tcpi_state == TCP_SYN_SENT && info.tcpi_retransmits == 1);
		len = sizeof(buffer);
		CHECK("TCP_CC_INFO by libc", getsockopt(client, SOL_TCP, 26, buffer, &len) == 0);
		len = sizeof(buffer);
		CHECK("SO_MEMINFO by libc", getsockopt(client, SOL_SOCKET, 55, buffer, &len) == 0 && len == 36);
		CHECK("sendfile to a socket that is not connected", sendfile(client, file, NULL, 10) == -1 && errno == EAGAIN);
		CHECK("close by libc", close(client) == 0);
		CHECK("close of a kernel descriptor by libc", close(file) == 0);
		CHECK("once", close(client) == -1 && errno == EBADF);
	}

	CHECK("close", i.close(u, listener) == 0 && i.close(u, fds[0]) == 0 && i.close(u, fds[1]) == 0);
	i.free(u);
	if (!failed)
		printf("all 33 slots\n");
	return failed;
}
