#include <tutti/error.hpp>

#include <fmt/format.h>

#include "values/described.hpp"

namespace [[gnu::visibility("default")]] tutti {

std::string_view name_of(Errc code) noexcept {
  switch (code) {
    case Errc::invalid_argument:
      return "invalid_argument";
    case Errc::count_overflow:
      return "count_overflow";
    case Errc::mismatch:
      return "mismatch";
    case Errc::unsupported:
      return "unsupported";
    case Errc::not_initialized:
      return "not_initialized";
    case Errc::timeout:
      return "timeout";
    case Errc::peer_lost:
      return "peer_lost";
    case Errc::aborted:
      return "aborted";
    case Errc::resource_exhausted:
      return "resource_exhausted";
    case Errc::forked:
      return "forked";
    case Errc::backend:
      return "backend";
  }
  return "unknown";
}

namespace {

class Category final : public std::error_category {
  const char* name() const noexcept override { return "tutti"; }
  std::string message(int value) const override {
    return std::string(name_of(static_cast<Errc>(value - 1)));
  }
};

std::string text(Errc code, const std::string& message, const Error::Where& where) {
  std::string place;
  if (!where.operation.empty()) place += where.operation;
  if (where.seq >= 0) place += fmt::format(" #{}", where.seq);
  if (!where.group.empty())
    place += fmt::format("{}group '{}'", place.empty() ? "" : " on ", where.group);
  return place.empty() ? fmt::format("{}: {}", name_of(code), message)
                       : fmt::format("{}: {}: {}", name_of(code), place, message);
}

}  // namespace

const std::error_category& error_category() noexcept {
  static const Category category;
  return category;
}

Error::Error(Errc code, const std::string& message) : Error(code, message, Where{}) {}

Error::Error(Errc code, const std::string& message, Where where)
    : std::runtime_error(text(code, message, where)),
      code_(code),
      where_(std::make_shared<const Where>(std::move(where))),
      message_(std::make_shared<const std::string>(message)) {}

void fail(Errc code, const std::string& message) {
  throw Error(code, message);
}

}  // namespace tutti

namespace tutti::internal {
namespace {

std::vector<Error> make_undescribed() {
  std::vector<Error> all;
  for (int code = 0; code <= static_cast<int>(Errc::backend); ++code)
    all.emplace_back(static_cast<Errc>(code), static_cast<Errc>(code) == Errc::resource_exhausted
                                                  ? "out of memory"
                                                  : "out of memory for the text of this error");
  return all;
}

// Never destroyed: threads may still end calls while the program ends.
const std::vector<Error>& all_undescribed = *new std::vector<Error>(make_undescribed());

}  // namespace

const Error& undescribed(Errc code) noexcept {
  return all_undescribed[static_cast<std::size_t>(code)];
}

}  // namespace tutti::internal
