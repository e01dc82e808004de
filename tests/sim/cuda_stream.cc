// libcuda.so.1: streams and events.
#include "calls.h"
#include "state.h"

using sim::Context;
using sim::Handle;
using sim::Result;

namespace {

// A stream by its handle, whatever context is current; the null stream is the current context's. With the state locked.
Result any_stream(const char* symbol, Handle handle, std::shared_ptr<sim::Stream>& stream) {
  const auto found = sim::state().streams.find(handle);
  if (found != sim::state().streams.end()) {
    stream = found->second;
    return stream->context->lost;
  }
  Context* context = nullptr;
  const Result result = sim::current_context(symbol, context);
  return result == sim::kSuccess ? sim::find_stream(symbol, handle, *context, stream) : result;
}

Result any_event(const char* symbol, Handle handle, std::shared_ptr<sim::Event>& event) {
  const auto found = sim::state().events.find(handle);
  if (found == sim::state().events.end()) {
    sim::violation(symbol, sim::text("event ", handle, " does not exist"));
    return sim::kInvalidHandle;
  }
  event = found->second;
  return event->context->lost;
}

}  // namespace

extern "C" {

SIM_EXPORT Result cuStreamCreate(Handle* handle, unsigned flags) {
  SIM_ENTER(cuStreamCreate);
  sim::State& all = sim::state();
  const std::lock_guard lock(all.mutex);
  Context* context = nullptr;
  const Result result = sim::current_context(here.name, context);
  if (result != sim::kSuccess) {
    return result;
  }
  *handle = all.new_handle();
  all.streams[*handle] = sim::start_stream(*context, flags == 0, *handle);
  return sim::kSuccess;
}

SIM_EXPORT Result cuStreamCreateWithPriority(Handle* handle, unsigned flags, int) {
  return cuStreamCreate(handle, flags);
}

// What is queued is still done.
SIM_EXPORT Result cuStreamDestroy_v2(Handle handle) {
  SIM_ENTER(cuStreamDestroy_v2);
  const std::lock_guard lock(sim::state().mutex);
  const auto found = sim::state().streams.find(handle);
  if (found == sim::state().streams.end()) {
    sim::violation(here.name, sim::text("stream ", handle, " does not exist"));
    return sim::kInvalidHandle;
  }
  const std::shared_ptr<sim::Stream> stream = found->second;
  sim::state().streams.erase(found);
  stream->closed = true;
  stream->arrived.notify_all();
  return stream->context->lost;
}

SIM_EXPORT Result cuStreamSynchronize(Handle handle) {
  SIM_ENTER(cuStreamSynchronize);
  std::unique_lock lock(sim::state().mutex);
  std::shared_ptr<sim::Stream> stream;
  const Result result = any_stream(here.name, handle, stream);
  if (result != sim::kSuccess) {
    return result;
  }
  sim::wait_for(lock, sim::record(stream));
  return stream->context->lost;
}

SIM_EXPORT Result cuStreamQuery(Handle handle) {
  SIM_ENTER(cuStreamQuery);
  const std::lock_guard lock(sim::state().mutex);
  std::shared_ptr<sim::Stream> stream;
  const Result result = any_stream(here.name, handle, stream);
  if (result != sim::kSuccess) {
    return result;
  }
  return stream->done < stream->queued ? sim::kNotReady : sim::kSuccess;
}

SIM_EXPORT Result cuStreamGetCtx(Handle handle, Handle* context) {
  SIM_ENTER(cuStreamGetCtx);
  const std::lock_guard lock(sim::state().mutex);
  std::shared_ptr<sim::Stream> stream;
  const Result result = any_stream(here.name, handle, stream);
  if (stream != nullptr) {
    *context = stream->context->handle();
  }
  return result;
}

// Both may be of different contexts.
SIM_EXPORT Result cuStreamWaitEvent(Handle stream_handle, Handle event_handle, unsigned) {
  SIM_ENTER(cuStreamWaitEvent);
  const std::lock_guard lock(sim::state().mutex);
  std::shared_ptr<sim::Stream> stream;
  std::shared_ptr<sim::Event> event;
  Result result = any_stream(here.name, stream_handle, stream);
  if (result == sim::kSuccess) {
    result = any_event(here.name, event_handle, event);
  }
  if (result == sim::kSuccess && !event->moment.reached()) {
    sim::enqueue(stream, {.after = {event->moment}});
  }
  return result;
}

SIM_EXPORT Result cuLaunchHostFunc(Handle handle, void (*function)(void*), void* argument) {
  SIM_ENTER(cuLaunchHostFunc);
  const std::lock_guard lock(sim::state().mutex);
  std::shared_ptr<sim::Stream> stream;
  const Result result = any_stream(here.name, handle, stream);
  if (result == sim::kSuccess) {
    sim::enqueue(stream, {.make = [=](std::int64_t) {
                   function(argument);
                   return sim::now_ns();
                 }});
  }
  return result;
}

SIM_EXPORT Result cuEventCreate(Handle* handle, unsigned) {
  SIM_ENTER(cuEventCreate);
  sim::State& all = sim::state();
  const std::lock_guard lock(all.mutex);
  Context* context = nullptr;
  const Result result = sim::current_context(here.name, context);
  if (result != sim::kSuccess) {
    return result;
  }
  *handle = all.new_handle();
  all.events[*handle] = std::make_shared<sim::Event>(sim::Event{.context = context, .moment = {}});
  return sim::kSuccess;
}

SIM_EXPORT Result cuEventDestroy_v2(Handle handle) {
  SIM_ENTER(cuEventDestroy_v2);
  const std::lock_guard lock(sim::state().mutex);
  std::shared_ptr<sim::Event> event;
  const Result result = any_event(here.name, handle, event);
  sim::state().events.erase(handle);
  return result;
}

SIM_EXPORT Result cuEventRecord(Handle event_handle, Handle stream_handle) {
  SIM_ENTER(cuEventRecord);
  const std::lock_guard lock(sim::state().mutex);
  std::shared_ptr<sim::Stream> stream;
  std::shared_ptr<sim::Event> event;
  Result result = any_event(here.name, event_handle, event);
  if (result == sim::kSuccess) {
    result = any_stream(here.name, stream_handle, stream);
  }
  if (result != sim::kSuccess) {
    return result;
  }
  if (event->context != stream->context) {
    sim::violation(here.name, sim::text("the event is of device ", event->context->device, ", the stream of device ",
                                        stream->context->device));
    return sim::kInvalidHandle;
  }
  event->moment = sim::record(stream);
  return sim::kSuccess;
}

SIM_EXPORT Result cuEventQuery(Handle handle) {
  SIM_ENTER(cuEventQuery);
  const std::lock_guard lock(sim::state().mutex);
  std::shared_ptr<sim::Event> event;
  const Result result = any_event(here.name, handle, event);
  if (result != sim::kSuccess) {
    return result;
  }
  return event->moment.reached() ? sim::kSuccess : sim::kNotReady;
}

SIM_EXPORT Result cuEventSynchronize(Handle handle) {
  SIM_ENTER(cuEventSynchronize);
  std::unique_lock lock(sim::state().mutex);
  std::shared_ptr<sim::Event> event;
  const Result result = any_event(here.name, handle, event);
  if (result != sim::kSuccess) {
    return result;
  }
  const sim::Progress moment = event->moment;  // a later record is none of this call's
  sim::wait_for(lock, moment);
  return event->context->lost;
}

}  // extern "C"
