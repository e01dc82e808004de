// Destination: where bytes that were read go. Host memory, memory of a device, or nowhere.
//
// The crew asks before a block is read, and hands over what has arrived. Called from several threads at once, for
// different blocks. What a destination writes to stays valid for as long as it lives.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "device/device.h"
#include "memory/huge_pages.h"
#include "plan/plan.h"
#include "plan/route.h"
#include "transfer/gds_use.h"

namespace penstock {

// A copy that goes on after put() has returned; kDone where there is none.
using CopyTicket = std::uint64_t;
inline constexpr CopyTicket kDone = 0;

class Destination {
 public:
  virtual ~Destination() = default;

  // Host memory that the drive may write a straight block to, which is this one piece; null: through staging after all.
  virtual std::byte* for_drive(const Piece& piece) noexcept = 0;

  // Host memory that the bytes of a piece may be copied to out of the page cache; null: through staging.
  virtual std::byte* for_copy(const Piece& piece, bool is_straight) noexcept = 0;

  // Puts pieces where they belong. `bytes` holds the file from `offset` on, until the copy is done; where pieces are
  // converted there is room behind them (see converts_in_staging). May throw: then nothing is under way.
  virtual CopyTicket put(std::span<const Piece> pieces, std::byte* bytes, std::uint64_t offset) = 0;

  // Of a ticket that is not kDone, on the thread that got it. Tickets of one thread are done in their order. check()
  // throws when a copy of this thread went wrong.
  virtual bool is_done(CopyTicket /*ticket*/) noexcept { return true; }
  virtual void wait(CopyTicket /*ticket*/) noexcept {}
  virtual void check() {}

  // Whether a device reads straight blocks, each of one piece, by itself; that may end at any time. Reads one and
  // waits: the number of requests that took, or nothing where it goes through staging after all.
  virtual bool reads_by_device() const noexcept { return false; }
  virtual std::optional<unsigned> read_by_device(const Piece& /*piece*/) noexcept { return std::nullopt; }

  // Whether converted pieces are put together in the staging block first, and take room there.
  virtual bool converts_in_staging() const noexcept { return false; }
};

// Memory of this process, at the addresses that the pieces name.
class HostDestination final : public Destination {
 public:
  struct Memory {
    std::shared_ptr<void> owner;  // nothing: the caller's, who waits
    HugePages* pages = nullptr;   // nothing: it has none
    bool reused = false;          // touched before: nothing to fault in
  };

  // `budget`: one for all that is loaded together.
  HostDestination(Memory memory, ReadLanding landing, std::shared_ptr<HugePageBudget> budget);

  std::byte* for_drive(const Piece& piece) noexcept override;
  std::byte* for_copy(const Piece& piece, bool is_straight) noexcept override;
  CopyTicket put(std::span<const Piece> pieces, std::byte* bytes, std::uint64_t offset) override;

 private:
  bool is_huge(const Piece& piece) noexcept;

  const Memory memory_;
  const bool by_page_;
  const std::shared_ptr<HugePageBudget> budget_;
};

// Memory of a device: every block passes through its staging block, which is pinned, and is copied from there on the
// lane of the thread that read it. One copy for each run of bytes that lie together in both. Straight blocks are read
// by the device itself, where it takes the file.
class DeviceDestination final : public Destination {
 public:
  struct Storage {
    std::shared_ptr<DeviceFile> file;  // nothing: the device reads nothing by itself
    std::shared_ptr<void> registered;  // memory that is registered for files, from its start; nothing: it is not
    std::shared_ptr<GdsUse> use;       // is told when the device fails to read
  };

  // `owner`: of the memory; nothing: the caller's, who waits. `staging_size`: of every staging block.
  DeviceDestination(std::shared_ptr<Lanes> lanes, std::shared_ptr<void> owner, std::uint64_t staging_size,
                    Storage storage = {});

  std::byte* for_drive(const Piece&) noexcept override { return nullptr; }
  std::byte* for_copy(const Piece&, bool) noexcept override { return nullptr; }
  CopyTicket put(std::span<const Piece> pieces, std::byte* bytes, std::uint64_t offset) override;
  bool is_done(CopyTicket ticket) noexcept override { return lanes_->started().passed(ticket); }
  void wait(CopyTicket ticket) noexcept override { lanes_->started().wait(ticket); }
  void check() override { lanes_->started().check(); }
  bool reads_by_device() const noexcept override { return reads_by_device_; }
  std::optional<unsigned> read_by_device(const Piece& piece) noexcept override;
  bool converts_in_staging() const noexcept override { return true; }

 private:
  const std::shared_ptr<Lanes> lanes_;
  const std::shared_ptr<void> owner_;
  const std::uint64_t staging_size_;
  const Storage storage_;  // behind the owner: memory is no longer registered when it is let go
  std::atomic<bool> reads_by_device_;
};

// For those who only look at what passes by.
class NoDestination final : public Destination {
 public:
  std::byte* for_drive(const Piece&) noexcept override { return nullptr; }
  std::byte* for_copy(const Piece&, bool) noexcept override { return nullptr; }
  CopyTicket put(std::span<const Piece>, std::byte*, std::uint64_t) override { return kDone; }
};

}  // namespace penstock
