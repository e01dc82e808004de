// The io_uring backend.
#include <liburing.h>

#include <cerrno>

#include "io/engine.h"

namespace penstock {
namespace {

class UringEngine final : public Engine {
 public:
  // Null, with the reason, when the kernel has no ring for us.
  static std::unique_ptr<UringEngine> create(unsigned depth, int& error_number) {
    auto engine = std::make_unique<UringEngine>();
    // One thread submits and reaps, so completions need not interrupt it; older kernels don't know these flags.
    if (engine->start(depth, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) != 0) {
      error_number = engine->start(depth, 0);
      if (error_number != 0) return nullptr;
    }
    error_number = engine->knows_operations() ? 0 : EOPNOTSUPP;
    return error_number == 0 ? std::move(engine) : nullptr;
  }

  UringEngine() = default;
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;
  ~UringEngine() override {
    if (started_) io_uring_queue_exit(&ring_);
  }

  std::string_view name() const noexcept override { return "uring"; }
  Backend kind() const noexcept override { return Backend::kUring; }

  bool register_buffers(std::span<const iovec> buffers) override {
    return io_uring_register_buffers(&ring_, buffers.data(), static_cast<unsigned>(buffers.size())) == 0;
  }

  int submit(const IoRequest& request) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return -EBUSY;
    prepare(entry, request);
    entry->rw_flags = request.flags;
    io_uring_sqe_set_data64(entry, request.tag);
    // Started at once: with DEFER_TASKRUN an unsubmitted entry would idle until the next wait.
    const int submitted = io_uring_submit(&ring_);
    if (submitted < 0 && !is_passing(submitted)) broken_ = submitted;
    return 0;
  }

  int wait(std::span<IoCompletion> completions) override {
    while (broken_ == 0) {
      const int result = io_uring_submit_and_wait(&ring_, 1);
      // A kernel that is short of something may become able again once completions are taken.
      if (result >= 0 || io_uring_cq_ready(&ring_) > 0) break;
      if (!is_passing(result)) broken_ = result;
    }
    // A request that was not taken stays in the ring, so after such an error nothing is submitted any more.
    if (broken_ != 0) return broken_;
    std::size_t count = 0;
    unsigned head = 0;
    io_uring_cqe* completion = nullptr;
    io_uring_for_each_cqe(&ring_, head, completion) {
      if (count == completions.size()) break;
      completions[count++] = {completion->user_data, completion->res};
    }
    io_uring_cq_advance(&ring_, static_cast<unsigned>(count));
    return static_cast<int>(count);
  }

 private:
  static bool is_passing(int result) { return result == -EINTR || result == -EAGAIN || result == -EBUSY; }

  // Rings are older (Linux 5.1) than reads and writes of plain buffers (5.6).
  bool knows_operations() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    const bool known =
        io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return known;
  }

  // 0 or an errno.
  int start(unsigned depth, unsigned flags) {
    io_uring_params parameters{};
    parameters.flags = flags;
    const int result = io_uring_queue_init_params(depth, &ring_, &parameters);
    started_ = result == 0;
    return -result;
  }

  static void prepare(io_uring_sqe* entry, const IoRequest& request) {
    const bool read = request.operation == IoRequest::Operation::kRead;
    if (request.buffer_index >= 0) {
      const auto prepare_fixed = read ? io_uring_prep_read_fixed : prepare_write_fixed;
      prepare_fixed(entry, request.fd, request.data, request.length, request.offset, request.buffer_index);
    } else if (read) {
      io_uring_prep_read(entry, request.fd, request.data, request.length, request.offset);
    } else {
      io_uring_prep_write(entry, request.fd, request.data, request.length, request.offset);
    }
  }

  static void prepare_write_fixed(io_uring_sqe* entry, int fd, void* data, unsigned length, __u64 offset, int index) {
    io_uring_prep_write_fixed(entry, fd, data, length, offset, index);
  }

  io_uring ring_{};
  bool started_ = false;
  int broken_ = 0;  // the error that ended this ring
};

}  // namespace

std::unique_ptr<Engine> make_uring_engine(unsigned depth) {
  int ignored = 0;
  return UringEngine::create(depth, ignored);
}

std::unique_ptr<Engine> try_uring_engine(unsigned depth, int& error_number) {
  return UringEngine::create(depth, error_number);
}

}  // namespace penstock
