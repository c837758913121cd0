// SPDX-License-Identifier: Apache-2.0
// The pages of the pool, by number: which are free, how many sequences use each, and which hold a prefix that other
// sequences may share. Where the rows of a page lie in memory is told in attention.hpp.
#pragma once
#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <vector>

namespace serve {

class Pool {
 public:
  static constexpr int64_t page_size = 16;  // rows

  // Whole pages from the first token of a sequence on. `contents` names what they hold: no two prefixes have the same
  // number, and no number is used twice, so that one which was evicted is never found again by mistake. 0: no page.
  struct Prefix {
    std::vector<int32_t> pages;
    uint64_t contents = 0;
  };

  explicit Pool(int64_t pages) : pages_(static_cast<size_t>(pages), Page{0, prefixes_.end(), {}}) {
    for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
  }

  // The longest prefix of these tokens that the pool holds. The caller becomes a user of its pages.
  Prefix share(std::span<const int32_t> tokens) {
    Prefix prefix;
    for (; tokens.size() >= page_size; tokens = tokens.subspan(page_size)) {
      const auto found = prefixes_.find(key(prefix.contents, tokens));
      if (found == prefixes_.end()) break;
      const auto [page, contents] = found->second;
      if (pages_[page].users++ == 0) idle_.erase(pages_[page].idle);
      prefix.pages.push_back(page);
      prefix.contents = contents;
    }
    reused_ += static_cast<int64_t>(prefix.pages.size());
    return prefix;
  }

  // A page to write, whose only user is the caller. Where none is free, the prefix that has had no user for the longest
  // time is forgotten; where each has one, there is no page.
  std::optional<int32_t> take() {
    if (free_.empty()) evict();
    if (free_.empty()) return std::nullopt;
    const int32_t page = free_.back();
    free_.pop_back();
    pages_[page].users = 1;
    return page;
  }

  // All rows of this page are written and will not change: from now on others may share it. `before` names the pages in
  // front of it; the result names these and this one. Where another page holds the same already, it stays the one that
  // is shared.
  uint64_t publish(int32_t page, uint64_t before, std::span<const int32_t> tokens) {
    const auto [entry, is_new] = prefixes_.try_emplace(key(before, tokens), Entry{page, contents_ + 1});
    if (is_new) pages_[page].prefix = entry, ++contents_;
    return entry->second.contents;
  }

  // The caller uses these pages no longer. Those that hold a prefix keep it until they are needed; the last pages of a
  // sequence are needed first, since the others are of no use without those before them.
  void release(std::span<const int32_t> pages) {
    for (const int32_t number : std::views::reverse(pages)) {
      Page& page = pages_[number];
      if (--page.users > 0) continue;
      if (page.prefix == prefixes_.end())
        free_.push_back(number);
      else
        page.idle = idle_.insert(idle_.end(), number);
    }
  }

  int64_t available() const { return static_cast<int64_t>(free_.size() + idle_.size()); }
  int64_t in_use() const { return static_cast<int64_t>(pages_.size()) - available(); }
  int64_t reused() const { return reused_; }    // pages that share() found
  int64_t evicted() const { return evicted_; }  // prefixes that take() forgot

 private:
  struct Key {
    uint64_t before;
    std::array<int32_t, page_size> tokens;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    int32_t page;
    uint64_t contents;
  };
  struct Page {
    int64_t users;
    std::map<Key, Entry>::iterator prefix;  // end(): it holds none
    std::list<int32_t>::iterator idle;      // of a page with a prefix and without users
  };

  static Key key(uint64_t before, std::span<const int32_t> tokens) {
    Key key{before, {}};
    std::ranges::copy(tokens.first(page_size), key.tokens.begin());
    return key;
  }

  void evict() {
    if (idle_.empty()) return;
    Page& page = pages_[idle_.front()];
    free_.push_back(idle_.front());
    idle_.pop_front();
    prefixes_.erase(page.prefix);
    page.prefix = prefixes_.end();
    ++evicted_;
  }

  std::map<Key, Entry> prefixes_;
  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  std::list<int32_t> idle_;  // from the one that has had no user for the longest time
  uint64_t contents_ = 0;
  int64_t reused_ = 0, evicted_ = 0;
};

}  // namespace serve
