/* The least that a server can do for a JSON request: an epoll loop that reads it, copies its numbers, and answers.

   floor PORT [worker]   listens on 127.0.0.1. With "worker" the numbers pass through a second process by a socket pair,
   as tensors do that a model in a process of its own gets: two more hand-overs, and two more copies.

   It checks nothing and knows one request: "data":[...] behind a Content-Length, whole within BUFFER_BYTES. */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER_BYTES = 65536, CONNECTIONS_MAX = 1024, EVENTS = 64 };

struct connection {
  size_t used;
  char bytes[BUFFER_BYTES + 1];
};

struct message {
  uint32_t connection;
  uint32_t bytes;
};

static struct connection *connections[CONNECTIONS_MAX];

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void send_all(int file, const char *bytes, size_t count) {
  while (count) {
    ssize_t sent = send(file, bytes, count, MSG_NOSIGNAL);
    if (sent <= 0) return; /* the client is gone: the loop sees that */
    bytes += sent;
    count -= (size_t)sent;
  }
}

static void answer(int file, const char *numbers, size_t count) {
  static const char before[] =
      "{\"model_name\":\"identity\",\"model_version\":\"1\",\"outputs\":[{\"name\":\"OUTPUT0\",\"datatype\":\"FP32\",\"shape\":[16],\"data\":";
  static char out[BUFFER_BYTES + 512];
  size_t body = sizeof before - 1 + count + 3;
  int head = snprintf(out, 256, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body);
  char *end = out + head;
  memcpy(end, before, sizeof before - 1);
  end += sizeof before - 1;
  memcpy(end, numbers, count);
  end += count;
  memcpy(end, "}]}", 3);
  send_all(file, out, (size_t)(end + 3 - out));
}

/* The whole request at the front: its numbers go to the worker, or into the answer. Returns its bytes, 0 if it is not whole. */
static size_t take(int file, struct connection *from, int worker) {
  char *head_end = memmem(from->bytes, from->used, "\r\n\r\n", 4);
  if (!head_end) return 0;
  *head_end = 0;
  char *length = strcasestr(from->bytes, "\r\ncontent-length:");
  *head_end = '\r';
  size_t body = length ? strtoul(length + 17, NULL, 10) : 0;
  size_t whole = (size_t)(head_end + 4 - from->bytes) + body;
  if (from->used < whole) return 0;
  if (from->bytes[0] == 'G') {
    static const char ready[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    send_all(file, ready, sizeof ready - 1);
    return whole;
  }
  char *numbers = memmem(head_end, body + 4, "\"data\":[", 8);
  char *end = numbers ? memchr(numbers, ']', (size_t)(from->bytes + whole - numbers)) : NULL;
  if (!end) exit(2);
  numbers += 7;
  size_t count = (size_t)(end + 1 - numbers);
  if (worker < 0) {
    answer(file, numbers, count);
  } else {
    char frame[sizeof(struct message) + count];
    struct message message = {(uint32_t)file, (uint32_t)count};
    memcpy(frame, &message, sizeof message);
    memcpy(frame + sizeof message, numbers, count);
    send_all(worker, frame, sizeof frame);
  }
  return whole;
}

static void be_worker(int server) {
  static char bytes[BUFFER_BYTES];
  for (;;) {
    ssize_t count = recv(server, bytes, sizeof bytes, 0);
    if (count <= 0) exit(0);
    send_all(server, bytes, (size_t)count);
  }
}

static int start_worker(void) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) fail("socketpair");
  if (!fork()) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    be_worker(ends[1]);
  }
  close(ends[1]);
  return ends[0];
}

static void take_result(int worker) {
  static char bytes[BUFFER_BYTES];
  ssize_t count = recv(worker, bytes, sizeof bytes, 0);
  if (count < (ssize_t)sizeof(struct message)) exit(3);
  struct message message;
  memcpy(&message, bytes, sizeof message);
  answer((int)message.connection, bytes + sizeof message, message.bytes);
}

static void drop(int file) {
  free(connections[file]);
  connections[file] = NULL;
  close(file);
}

static void take_bytes(int file, int worker) {
  struct connection *from = connections[file];
  ssize_t count = recv(file, from->bytes + from->used, BUFFER_BYTES - from->used, 0);
  if (count <= 0) {
    drop(file);
    return;
  }
  from->used += (size_t)count;
  size_t whole;
  while ((whole = take(file, from, worker))) {
    from->used -= whole;
    memmove(from->bytes, from->bytes + whole, from->used);
  }
}

int main(int count, char **arguments) {
  if (count < 2) return 2;
  signal(SIGTERM, SIG_DFL);
  int worker = count > 2 ? start_worker() : -1;
  int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1]))};
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 256)) fail("bind");
  int poll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];
  epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
  if (worker >= 0) {
    event.data.fd = worker;
    epoll_ctl(poll, EPOLL_CTL_ADD, worker, &event);
  }
  for (;;) {
    int found = epoll_wait(poll, events, EVENTS, -1);
    for (int each = 0; each < found; each++) {
      int file = events[each].data.fd;
      if (file == worker) {
        take_result(worker);
      } else if (file != listener) {
        take_bytes(file, worker);
      } else if ((file = accept(listener, NULL, NULL)) >= CONNECTIONS_MAX) {
        close(file);
      } else if (file >= 0) {
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        connections[file] = calloc(1, sizeof(struct connection));
        event.data.fd = file;
        epoll_ctl(poll, EPOLL_CTL_ADD, file, &event);
      }
    }
  }
}
