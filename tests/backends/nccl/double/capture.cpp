#include "backends/nccl/double/capture.hpp"

#include <utility>

namespace tutti::test::nccl_double {

void join(const std::shared_ptr<Capture>& capture, Stream& stream) {
  stream.capture = capture;
  stream.place = static_cast<int>(capture->streams.size());
  capture->streams.push_back(&stream);
  capture->lengths.push_back(0);
  capture->known.emplace_back();
}

void keep(Stream& stream, Command command) {
  Capture& capture = *stream.capture;
  const auto at = static_cast<std::size_t>(stream.place);
  command.place = stream.place;
  LaneClock& known = capture.known[at];
  if (command.task.waits != nullptr)
    known.merge(command.task.waits->known);
  else if (command.task.records == nullptr)
    known.set(stream.place, ++capture.lengths[at]);
  if (const auto& moment = command.task.records; moment != nullptr) {
    moment->captured = true;
    moment->capture = stream.capture;
    moment->known = known;
  }
  capture.commands.push_back(std::move(command));
}

void invalidate(Stream& stream) {
  if (stream.capture != nullptr) stream.capture->invalid = true;
}

}  // namespace tutti::test::nccl_double
