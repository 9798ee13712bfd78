#include "rdma/ibverbs.h"

#include <cerrno>

#ifdef BRAIDFS_HAS_VERBS
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>
#undef ibv_query_port
#undef ibv_reg_mr
#endif

namespace braidfs::rdma {

#ifndef BRAIDFS_HAS_VERBS

int open_device(const DeviceAddress&, std::unique_ptr<Device>&, std::string& reason) {
  reason = "this build has no RDMA (libibverbs-dev was missing)";
  return -ENOSYS;
}

#else

namespace {

// One timeout is 4.096 us * 2^14 = 67 ms. After seven retries the queue pair fails.
constexpr uint8_t kTimeout = 14;
constexpr uint8_t kRetries = 7;
constexpr uint8_t kReceiverNotReadyForEver = 7;
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
constexpr uint8_t kReadsMax = 16;
constexpr uint8_t kHopLimit = 64;
constexpr unsigned kAcknowledgedAtOnce = 1024;
// Room for most requests: they are copied into the queue, so the card need not fetch them from
// memory.
constexpr uint32_t kInlineWanted = 256;

// The functions that are loaded: every one that verbs.h does not define inline.
struct Library {
#define BRAIDFS_VERB(name) decltype(&::ibv_##name) name = nullptr;
#define BRAIDFS_VERBS(X)  \
  X(get_device_list)      \
  X(free_device_list)     \
  X(get_device_name)      \
  X(open_device)          \
  X(close_device)         \
  X(query_port)           \
  X(query_gid)            \
  X(query_device)         \
  X(alloc_pd)             \
  X(dealloc_pd)           \
  X(reg_mr)               \
  X(dereg_mr)             \
  X(create_comp_channel)  \
  X(destroy_comp_channel) \
  X(create_cq)            \
  X(destroy_cq)           \
  X(get_cq_event)         \
  X(ack_cq_events)        \
  X(get_async_event)      \
  X(ack_async_event)      \
  X(create_srq) X(destroy_srq) X(create_qp) X(modify_qp) X(destroy_qp) X(wc_status_str)
  BRAIDFS_VERBS(BRAIDFS_VERB)
  BRAIDFS_VERB(reg_dmabuf_mr)  // since rdma-core 34, so it may be missing
  std::string fault;

  Library() {
    void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      fault = "libibverbs.so.1 cannot be loaded: install libibverbs1 and ibverbs-providers";
      return;
    }
#define BRAIDFS_LOAD(name)                                              \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, "ibv_" #name)); \
  if (name == nullptr) fault = "libibverbs.so.1 has no ibv_" #name;
    BRAIDFS_VERBS(BRAIDFS_LOAD)
    reg_dmabuf_mr = reinterpret_cast<decltype(reg_dmabuf_mr)>(dlsym(handle, "ibv_reg_dmabuf_mr"));
  }
};

const Library& library() {
  static const Library loaded;  // it is never unloaded: the providers stay mapped
  return loaded;
}

int negative_errno() { return errno == 0 ? -EIO : -errno; }

class RealRegion final : public Region {
 public:
  explicit RealRegion(ibv_mr* region) : region_(region) {}
  ~RealRegion() override { library().dereg_mr(region_); }
  uint32_t local_key() const noexcept override { return region_->lkey; }
  uint32_t remote_key() const noexcept override { return region_->rkey; }

 private:
  ibv_mr* const region_;
};

class RealCompletionQueue final : public CompletionQueue {
 public:
  RealCompletionQueue(ibv_comp_channel* channel, ibv_cq* queue)
      : channel_(channel), queue_(queue) {}
  ~RealCompletionQueue() override {
    if (unacknowledged_ > 0) library().ack_cq_events(queue_, unacknowledged_);
    library().destroy_cq(queue_);
    library().destroy_comp_channel(channel_);
  }
  ibv_cq* raw() const noexcept { return queue_; }
  int fd() const noexcept override { return channel_->fd; }
  int arm() override { return -ibv_req_notify_cq(queue_, 0); }

  // The channel is non-blocking and has one event for each arm(), so one system call takes it.
  // Events are acknowledged many at a time, because each acknowledgement takes a mutex.
  int acknowledge() override {
    ibv_cq* which = nullptr;
    void* context = nullptr;
    if (library().get_cq_event(channel_, &which, &context) != 0) {
      return errno == EAGAIN || errno == EINTR ? 0 : -EIO;
    }
    if (++unacknowledged_ < kAcknowledgedAtOnce) return 0;
    library().ack_cq_events(queue_, std::exchange(unacknowledged_, 0));
    return 0;
  }

  int poll(std::span<Completion> into) override {
    ibv_wc raw[64];
    const int wanted = static_cast<int>(std::min<size_t>(into.size(), std::size(raw)));
    const int count = ibv_poll_cq(queue_, wanted, raw);
    if (count < 0) return -EIO;
    for (int index = 0; index < count; ++index) {
      const ibv_wc& from = raw[index];
      into[static_cast<size_t>(index)] = {.id = from.wr_id,
                                          .queue_pair = from.qp_num,
                                          .length = from.byte_len,
                                          .status = static_cast<int>(from.status)};
    }
    return count;
  }

 private:
  ibv_comp_channel* const channel_;
  ibv_cq* const queue_;
  unsigned unacknowledged_ = 0;
};

ibv_sge place_of(std::span<std::byte> local, uint32_t key) {
  return {reinterpret_cast<uint64_t>(local.data()), static_cast<uint32_t>(local.size()), key};
}

class RealReceiveQueue final : public ReceiveQueue {
 public:
  explicit RealReceiveQueue(ibv_srq* queue) : queue_(queue) {}
  ~RealReceiveQueue() override { library().destroy_srq(queue_); }
  ibv_srq* raw() const noexcept { return queue_; }

  int post(std::span<const Receive> receives) override {
    for (const Receive& receive : receives) {
      ibv_sge place = place_of(receive.local, receive.local_key);
      ibv_recv_wr request{};
      request.wr_id = receive.id;
      request.sg_list = &place;
      request.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      if (const int error = ibv_post_srq_recv(queue_, &request, &bad); error != 0) return -error;
    }
    return 0;
  }

 private:
  ibv_srq* const queue_;
};

struct Route {
  uint8_t port = 1;
  uint8_t gid_index = 0;
  bool is_ethernet = true;
  ibv_mtu mtu = IBV_MTU_1024;
  uint16_t lid = 0;
  ibv_gid gid{};
  uint8_t reads_max = 1;
};

uint32_t random_sequence() {
  std::random_device random;
  return random() & 0xffffff;
}

class RealQueuePair final : public QueuePair {
 public:
  RealQueuePair(ibv_qp* pair, const Route& route, uint32_t inline_max)
      : pair_(pair), route_(route), inline_max_(inline_max), sequence_(random_sequence()) {}
  ~RealQueuePair() override { library().destroy_qp(pair_); }

  int initialize(bool remote_access) {
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_INIT;
    wanted.port_num = route_.port;
    wanted.qp_access_flags = remote_access ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : 0;
    return change(wanted, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }

  Peer local() const noexcept override {
    Peer self;
    self.queue_pair = pair_->qp_num;
    self.sequence = sequence_;
    self.lid = route_.lid;
    self.mtu = static_cast<uint8_t>(route_.mtu);
    self.reads_max = route_.reads_max;
    std::memcpy(self.gid.data(), route_.gid.raw, self.gid.size());
    return self;
  }

  int connect(const Peer& peer) override {
    if (const int error = ready_to_receive(peer); error != 0) return error;
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_RTS;
    wanted.timeout = kTimeout;
    wanted.retry_cnt = kRetries;
    wanted.rnr_retry = kReceiverNotReadyForEver;
    wanted.sq_psn = sequence_;
    wanted.max_rd_atomic = std::min(route_.reads_max, peer.reads_max);
    return change(wanted, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }

  int post(std::span<const Work> chain) override {
    places_.resize(chain.size());
    requests_.assign(chain.size(), ibv_send_wr{});
    for (size_t index = 0; index < chain.size(); ++index) {
      const Work& work = chain[index];
      ibv_send_wr& request = requests_[index];
      places_[index] = place_of(work.local, work.local_key);
      request.wr_id = work.id;
      request.next = index + 1 < chain.size() ? &requests_[index + 1] : nullptr;
      request.sg_list = &places_[index];
      request.num_sge = work.local.empty() ? 0 : 1;
      request.opcode = opcode_of(work.kind);
      request.send_flags = work.signalled ? unsigned{IBV_SEND_SIGNALED} : 0u;
      if (work.kind == Work::Kind::kSend && work.local.size() <= inline_max_) {
        request.send_flags |= IBV_SEND_INLINE;
      }
      request.wr.rdma.remote_addr = work.remote_address;
      request.wr.rdma.rkey = work.remote_key;
    }
    ibv_send_wr* bad = nullptr;
    return -ibv_post_send(pair_, requests_.data(), &bad);
  }

  void fail() noexcept override {
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_ERR;
    (void)library().modify_qp(pair_, &wanted, IBV_QP_STATE);
  }

 private:
  static ibv_wr_opcode opcode_of(Work::Kind kind) {
    if (kind == Work::Kind::kWrite) return IBV_WR_RDMA_WRITE;
    return kind == Work::Kind::kRead ? IBV_WR_RDMA_READ : IBV_WR_SEND;
  }

  int ready_to_receive(const Peer& peer) {
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_RTR;
    wanted.path_mtu = std::min(route_.mtu, static_cast<ibv_mtu>(peer.mtu));
    wanted.dest_qp_num = peer.queue_pair;
    wanted.rq_psn = peer.sequence & 0xffffff;
    wanted.max_dest_rd_atomic = route_.reads_max;
    wanted.min_rnr_timer = kReceiverNotReadyTimer;
    wanted.ah_attr.port_num = route_.port;
    wanted.ah_attr.dlid = peer.lid;
    wanted.ah_attr.is_global =
        route_.is_ethernet || std::memcmp(&peer.gid[0], route_.gid.raw, 8) != 0;
    std::memcpy(wanted.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    wanted.ah_attr.grh.sgid_index = route_.gid_index;
    wanted.ah_attr.grh.hop_limit = kHopLimit;
    return change(wanted, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }

  int change(ibv_qp_attr& wanted, int mask) { return -library().modify_qp(pair_, &wanted, mask); }

  ibv_qp* const pair_;
  const Route route_;
  const uint32_t inline_max_;
  const uint32_t sequence_;
  std::vector<ibv_sge> places_;
  std::vector<ibv_send_wr> requests_;
};

int access_flags(bool remote_access) {
  return IBV_ACCESS_LOCAL_WRITE |
         (remote_access ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ : 0);
}

bool make_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

class RealDevice final : public Device {
 public:
  RealDevice(ibv_context* context, ibv_pd* domain, const Route& route)
      : context_(context), domain_(domain), route_(route) {}
  ~RealDevice() override {
    library().dealloc_pd(domain_);
    library().close_device(context_);
  }

  int register_memory(std::span<std::byte> memory, bool remote_access,
                      std::unique_ptr<Region>& region) override {
    ibv_mr* made =
        library().reg_mr(domain_, memory.data(), memory.size(), access_flags(remote_access));
    if (made == nullptr) return negative_errno();
    region = std::make_unique<RealRegion>(made);
    return 0;
  }

  int make_completion_queue(uint32_t depth, std::unique_ptr<CompletionQueue>& made) override {
    ibv_comp_channel* channel = library().create_comp_channel(context_);
    if (channel == nullptr) return negative_errno();
    ibv_cq* queue =
        make_nonblocking(channel->fd)
            ? library().create_cq(context_, static_cast<int>(depth), nullptr, channel, 0)
            : nullptr;
    if (queue == nullptr) {
      const int error = negative_errno();
      library().destroy_comp_channel(channel);
      return error;
    }
    made = std::make_unique<RealCompletionQueue>(channel, queue);
    return 0;
  }

  int make_receive_queue(uint32_t depth, std::unique_ptr<ReceiveQueue>& made) override {
    ibv_srq_init_attr wanted{};
    wanted.attr.max_wr = depth;
    wanted.attr.max_sge = 1;
    ibv_srq* queue = library().create_srq(domain_, &wanted);
    if (queue == nullptr) return negative_errno();
    made = std::make_unique<RealReceiveQueue>(queue);
    return 0;
  }

  int make_queue_pair(const QueuePairSpec& spec, std::unique_ptr<QueuePair>& made) override {
    ibv_cq* completions = static_cast<RealCompletionQueue*>(spec.completions)->raw();
    ibv_qp_init_attr wanted{};
    wanted.send_cq = completions;
    wanted.recv_cq = completions;
    wanted.srq = static_cast<RealReceiveQueue*>(spec.receives)->raw();
    wanted.cap.max_send_wr = spec.work_max;
    wanted.cap.max_send_sge = 1;
    wanted.cap.max_inline_data = kInlineWanted;
    wanted.qp_type = IBV_QPT_RC;
    ibv_qp* pair = library().create_qp(domain_, &wanted);
    if (pair == nullptr) {  // a queue pair without room for inline bytes works as well
      wanted.cap.max_inline_data = 0;
      pair = library().create_qp(domain_, &wanted);
    }
    if (pair == nullptr) return negative_errno();
    auto real = std::make_unique<RealQueuePair>(pair, route_, wanted.cap.max_inline_data);
    if (const int error = real->initialize(spec.remote_access); error != 0) return error;
    made = std::move(real);
    return 0;
  }

  int register_dmabuf(const Dmabuf& memory, bool remote_access,
                      std::unique_ptr<Region>& region) override {
    if (library().reg_dmabuf_mr == nullptr) return -EOPNOTSUPP;
    ibv_mr* made = library().reg_dmabuf_mr(domain_, memory.offset, memory.length, memory.address,
                                           memory.fd, access_flags(remote_access));
    if (made == nullptr) return negative_errno();
    region = std::make_unique<RealRegion>(made);
    return 0;
  }

  std::string describe(int status) const override {
    return library().wc_status_str(static_cast<ibv_wc_status>(status));
  }

  // Takes the events of queue pairs and of the device; Python watches the events of ports.
  bool take_events(std::vector<uint32_t>& failed_pairs) override {
    ibv_async_event event{};
    while (library().get_async_event(context_, &event) == 0) {
      failed_ = failed_ || event.event_type == IBV_EVENT_DEVICE_FATAL;
      if (gave_up_pair(event.event_type)) failed_pairs.push_back(event.element.qp->qp_num);
      library().ack_async_event(&event);
    }
    return failed_ || (errno != EAGAIN && errno != EINTR);
  }

 private:
  // True when the device gave up the queue pair. A side that only answers learns it from no
  // completion.
  static bool gave_up_pair(ibv_event_type type) {
    return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
           type == IBV_EVENT_QP_ACCESS_ERR;
  }

  ibv_context* const context_;
  ibv_pd* const domain_;
  const Route route_;
  bool failed_ = false;
};

ibv_context* open_named(const std::string& name) {
  int count = 0;
  ibv_device** devices = library().get_device_list(&count);
  if (devices == nullptr) return nullptr;
  ibv_context* context = nullptr;
  for (int index = 0; index < count; ++index) {
    if (name == library().get_device_name(devices[index])) {
      context = library().open_device(devices[index]);
    }
  }
  library().free_device_list(devices);
  return context;
}

// Finds port, GID and MTU. 0, or -errno with a sentence in `reason`.
int find_route(ibv_context* context, const DeviceAddress& address, Route& route,
               std::string& reason) {
  ibv_port_attr port{};
  ibv_device_attr device{};
  if (library().query_port(context, address.port,
                           reinterpret_cast<_compat_ibv_port_attr*>(&port)) != 0 ||
      library().query_device(context, &device) != 0) {
    reason = address.device + " has no port " + std::to_string(address.port);
    return -ENODEV;
  }
  if (port.state != IBV_PORT_ACTIVE) {
    reason = "port " + std::to_string(address.port) + " of " + address.device + " is down";
    return -ENETDOWN;
  }
  if (library().query_gid(context, address.port, address.gid_index, &route.gid) != 0) {
    reason = address.device + " has no GID " + std::to_string(address.gid_index);
    return -EADDRNOTAVAIL;
  }
  route.port = address.port;
  route.gid_index = address.gid_index;
  route.is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  route.mtu = port.active_mtu;
  route.lid = port.lid;
  route.reads_max = static_cast<uint8_t>(std::clamp(device.max_qp_rd_atom, 1, int{kReadsMax}));
  return 0;
}

}  // namespace

int open_device(const DeviceAddress& address, std::unique_ptr<Device>& device,
                std::string& reason) {
  if (!library().fault.empty()) {
    reason = library().fault;
    return -ENOSYS;
  }
  ibv_context* context = open_named(address.device);
  if (context == nullptr) {
    reason = "there is no RDMA device " + address.device + ", or it cannot be opened";
    return -ENODEV;
  }
  Route route;
  int error = find_route(context, address, route, reason);
  if (error == 0 && !make_nonblocking(context->async_fd)) error = negative_errno();
  ibv_pd* domain = error == 0 ? library().alloc_pd(context) : nullptr;
  if (domain == nullptr) {
    if (error == 0) reason = address.device + " gives no protection domain";
    library().close_device(context);
    return error == 0 ? -EIO : error;
  }
  device = std::make_unique<RealDevice>(context, domain, route);
  return 0;
}

#endif

}  // namespace braidfs::rdma
