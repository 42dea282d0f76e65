#include <exception>
#include <optional>
#include <system_error>
#include <thread>

#include <tutti/process_group.hpp>

#include "values/current_error.hpp"

namespace tutti {

std::vector<ProcessGroup> ProcessGroup::create_all(std::span<const GroupOptions> options) {
  std::vector<std::optional<ProcessGroup>> made(options.size());
  std::vector<std::exception_ptr> thrown(options.size());
  std::vector<std::thread> threads;
  threads.reserve(options.size());
  std::exception_ptr no_thread;
  for (std::size_t i = 0; i < options.size(); ++i) try {
      threads.emplace_back([&, i] {
        try {
          made[i].emplace(create(options[i]));
        } catch (...) {
          thrown[i] = std::current_exception();
        }
      });
    } catch (const std::system_error& error) {
      // Threads already started end by their timeouts.
      no_thread = std::make_exception_ptr(
          Error(Errc::resource_exhausted,
                std::string("create_all: cannot start a thread for each group: ") + error.what()));
      break;
    }
  for (auto& thread : threads) thread.join();
  if (no_thread) std::rethrow_exception(no_thread);
  // Throws timeouts last: ranks time out because another rank could not join, whose error says
  // more.
  for (const bool waited : {false, true})
    for (const auto& error : thrown)
      if (error && (internal::to_error(error).code() == Errc::timeout) == waited)
        std::rethrow_exception(error);
  std::vector<ProcessGroup> all;
  all.reserve(made.size());
  for (auto& group : made) all.push_back(std::move(*group));
  return all;
}

}  // namespace tutti
