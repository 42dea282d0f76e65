#include "store/handshake.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

using crypto::Digest;

constexpr std::uint32_t role_rank = 1;
constexpr std::uint32_t role_other = 2;

// Different labels make different keys, so a proof that comes back to its sender proves nothing.
constexpr std::string_view server_label = "tutti store 2, proof of the server";
constexpr std::string_view client_label = "tutti store 2, proof of the client";

constexpr std::size_t nonce_at = handshake_bytes;
constexpr std::size_t claims_at = nonce_at + 32;
constexpr std::size_t claims_bytes = client_hello_bytes - claims_at;
static_assert(client_hello_bytes + 32 <= 255, "ServerHandshake counts in one byte");

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

Handshake proof_header() {
  return {.bytes = static_cast<std::uint32_t>(server_proof_bytes)};
}

/// The HMAC over everything said before the proofs. Its key depends on the token, both nonces, the
/// claims and the side that proves.
Digest prove(std::string_view label, const StoreToken& token, std::span<const std::byte> hello,
             std::span<const std::byte> header, std::span<const std::byte> server_nonce) {
  const auto salt = Writer().raw(hello.subspan(nonce_at, 32)).raw(server_nonce).take();
  const auto info = Writer().raw(label).raw(hello.subspan(claims_at, claims_bytes)).take();
  const auto transcript = Writer().raw(hello).raw(header).raw(server_nonce).take();
  return crypto::Key(as_bytes(token.text()), salt, info).hmac(transcript);
}

}  // namespace

// --- Client

ClientHandshake::ClientHandshake(const StoreIdentity& identity) : token_(identity.token) {
  const bool is_rank = identity.rank >= 0;
  if (is_rank ? identity.rank >= identity.size : identity.rank != -1 || identity.size != 0)
    failf(Errc::invalid_argument,
          "store: the identity has rank {} of {}; a rank is from 0 to size - 1, a client that is "
          "not a rank passes rank -1 and size 0",
          identity.rank, identity.size);
  Digest nonce;
  crypto::random(nonce);
  const Handshake header{.kind = kind_token,
                         .bytes = static_cast<std::uint32_t>(client_hello_bytes - handshake_bytes)};
  const auto bytes = Writer()
                         .raw(encode_handshake(client_magic, header))
                         .raw(nonce)
                         .raw(crypto::sha256(as_bytes(identity.job)))
                         .u32(is_rank ? role_rank : role_other)
                         .i32(identity.rank)
                         .i32(identity.size)
                         .u32(identity.generation)
                         .take();
  std::ranges::copy(bytes, hello_.begin());
}

std::optional<Digest> ClientHandshake::answer(
    std::span<const std::byte, handshake_bytes> handshake,
    std::span<const std::byte, server_proof_bytes> proof) const {
  const auto nonce = proof.first<32>();
  Digest shown;
  std::ranges::copy(proof.last<32>(), shown.begin());
  if (!crypto::equal(shown, prove(server_label, token_, hello_, handshake, nonce)))
    return std::nullopt;
  return prove(client_label, token_, hello_, handshake, nonce);
}

// --- Server

StoreAdmission::StoreAdmission(const StoreServerOptions& options)
    : token_(options.token),
      job_(options.job),
      generation_(options.generation),
      size_(options.size) {
  if (size_ < 0)
    failf(Errc::invalid_argument, "store server: size is {}; it must be 0 (any) or more", size_);
  if (token_) job_digest_ = crypto::sha256(as_bytes(job_));
}

Bytes ServerHandshake::take(std::span<const std::byte>& bytes, const StoreAdmission& admission) {
  Bytes reply;
  while (state_ == State::waiting && !bytes.empty()) {
    const std::size_t at = got_;
    const auto n = std::min<std::size_t>(bytes.size(), want_ - at);
    for (std::size_t i = 0; i < n; ++i)
      (at + i < client_hello_bytes ? hello_[at + i] : proof_[at + i - client_hello_bytes]) =
          bytes[i];
    bytes = bytes.subspan(n);
    got_ = static_cast<std::uint8_t>(at + n);
    if (!may_be_handshake(client_magic,
                          std::span(hello_).first(std::min<std::size_t>(got_, handshake_bytes)))) {
      state_ = State::foreign;
      return {};
    }
    if (got_ < want_) break;
    Bytes more = want_ == handshake_bytes      ? begin(admission)
                 : want_ == client_hello_bytes ? challenge(admission)
                                               : judge(admission);
    reply.insert(reply.end(), more.begin(), more.end());
  }
  return reply;
}

Bytes ServerHandshake::begin(const StoreAdmission& admission) {
  const auto handshake = decode_handshake(hello_);
  if (handshake.version != store_version)
    return refuse(Errc::unsupported, fmt::format("the server speaks version {} of the store "
                                                 "protocol, the client speaks version {}",
                                                 store_version, handshake.version));
  const auto bytes = handshake.kind == kind_token ? client_hello_bytes - handshake_bytes : 0;
  if (handshake.kind > kind_token || handshake.bytes != bytes)
    return refuse(Errc::unsupported,
                  fmt::format("the server does not know credentials of kind {} with {} bytes",
                              handshake.kind, handshake.bytes));
  if (admission.token_ && handshake.kind != kind_token)
    return refuse(Errc::invalid_argument,
                  "the store needs a token, and the client has none; set TUTTI_TOKEN_FILE, or give "
                  "open_store() a StoreIdentity with the token of the job");
  if (!admission.token_ && handshake.kind == kind_token)
    return refuse(Errc::invalid_argument,
                  "the client has a token, and the store has none; start the process of the store "
                  "with the same TUTTI_TOKEN_FILE, or unset it for this client");
  if (handshake.kind == kind_token) {
    want_ = client_hello_bytes;
    return {};
  }
  state_ = State::accepted;
  return encode_handshake(server_magic, {});
}

Bytes ServerHandshake::challenge(const StoreAdmission& admission) {
  Digest nonce;
  crypto::random(nonce);
  const auto header = encode_handshake(server_magic, proof_header());
  expected_ = prove(client_label, admission.token_, hello_, header, nonce);
  want_ = client_hello_bytes + 32;
  return Writer()
      .raw(header)
      .raw(nonce)
      .raw(prove(server_label, admission.token_, hello_, header, nonce))
      .take();
}

Bytes ServerHandshake::judge(const StoreAdmission& admission) {
  if (!crypto::equal(proof_, expected_))
    return refuse(Errc::mismatch, "the client has another token than the store");
  // Only a client with the token learns what this store is for.
  const auto claims = std::span<const std::byte>(hello_).subspan(claims_at);
  Reader in(claims, Errc::invalid_argument, "store: a handshake");
  const auto job = in.raw(32);
  const auto role = in.u32();
  const auto rank = in.i32();
  const auto size = in.i32();
  const auto generation = in.u32();
  if (!std::ranges::equal(job, admission.job_digest_))
    return refuse(
        Errc::mismatch,
        fmt::format("the store belongs to job '{}', the client to another job", admission.job_));
  if (generation != admission.generation_)
    return refuse(Errc::mismatch,
                  fmt::format("the store belongs to generation {} of the job, the client to {}",
                              admission.generation_, generation));
  const bool possible =
      role == role_rank ? rank >= 0 && rank < size : role == role_other && rank == -1 && size == 0;
  if (!possible)
    return refuse(Errc::mismatch, fmt::format("the client claims to be rank {} of {} in role {}",
                                              rank, size, role));
  if (role == role_rank && admission.size_ != 0 && size != admission.size_)
    return refuse(Errc::mismatch, fmt::format("the store belongs to {} ranks, the client is rank "
                                              "{} of {}",
                                              admission.size_, rank, size));
  state_ = State::accepted;
  return encode_handshake(server_magic, {});
}

Bytes ServerHandshake::refuse(Errc code, std::string_view text) {
  state_ = State::refused;
  auto reply = encode_refusal(code, text);
  refusal_bytes_ = static_cast<std::uint16_t>(reply.size() - handshake_bytes);
  return reply;
}

std::string_view ServerHandshake::refusal(std::span<const std::byte> reply) const noexcept {
  const auto text = reply.last(refusal_bytes_);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

}  // namespace tutti::internal
