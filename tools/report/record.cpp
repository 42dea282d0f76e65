#include "report/record.hpp"

#include <fmt/format.h>

namespace tutti::tool {

std::string_view name_of(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::wrong_data:
      return "wrong_data";
    case Status::timeout:
      return "timeout";
    case Status::interrupted:
      return "interrupted";
    case Status::error:
      break;
  }
  return "error";
}

std::string describe_world(const RunRecord& record) {
  const World& world = record.world;
  return fmt::format("{} rank{} / {} host{}  {}{}{}", world.size, world.size == 1 ? "" : "s",
                     world.hosts, world.hosts == 1 ? "" : "s", record.backend.name,
                     record.backend.transport.empty() ? "" : " ", record.backend.transport);
}

}  // namespace tutti::tool
