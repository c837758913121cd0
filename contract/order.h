// SPDX-License-Identifier: Apache-2.0
// contract: the order in which persistent CTAs take work items. The items of a (sequence, head) pair are numbered by
// their query rows: item n is q tile n of a query head; with split-KV into fixed parts it is part n % parts of q tile
// n / parts; with PackGQA the head of the pair stands for the query heads that share a tile; in the backward
// pass the item is kv tile n of a key head. Below, "q tile" stands for any of these.
//
// Fixed lengths. Items are handed out by sections of (sequence, head) pairs whose K and V fit a share of L2; in a
// section the pair runs fastest and, where a mask makes tiles unequal, the heaviest q tiles come first. The lightest q
// tiles of every pair (`tail`) are held back and handed out last, over all pairs together, so that no section ends
// with few heavy tiles. Instead, the pairs from in_sections on may make one long section, whose light tiles keep busy
// the CTAs that would wait for the heavy ones.
// Ragged. The sequences whose items are the heaviest come first (weight_class_of): those with most keys, or in the
// backward pass with most query rows. In each of them the items come by the same sections of heads, the heaviest
// q tiles first, without a tail. The last sequences of every weight class, where they are short, are handed out
// together, the heaviest tiles of all of them first.
#pragma once

namespace froghopper {

struct Order {
  int items;          // pairs x items_of_pair; ragged: an upper bound
  int pairs;          // (sequence, head) pairs
  int items_of_pair;  // ragged: of the longest sequence
  int section;        // pairs handed out together, so that their K and V stay in L2
  int in_sections;    // pairs [0, in_sections) come by such sections, the others together; ragged: of whole sequences
  int tail;           // lightest q tiles of every pair, handed out last, over all pairs together
  int deferred_tiles;  // items of at least this many kv tiles fetch the next one when few of their K loads are still to
                       // be issued; shorter ones fetch it at once
  bool operator==(const Order&) const = default;
};

// A work item as the order knows it.
struct ItemOfPair {
  int pair;           // sequence x heads + head
  int index_in_pair;  // among the items of the pair: [0, Order::items_of_pair)
};

// The item that is handed out as number `number` of [0, items), of a problem with fixed lengths. tiles_falling: those
// of a pair come from the last one to the first.
constexpr ItemOfPair item_at(const Order& order, int number, bool tiles_falling) {
  const int heavy = order.items_of_pair - order.tail;  // items of a pair that are handed out by sections
  const int by_section = order.pairs * heavy;
  const bool last = number >= by_section;
  const int by_size = number / (order.section * heavy) * order.section;
  const int first_pair = last ? 0 : by_size < order.in_sections ? by_size : order.in_sections;
  const int left = order.pairs - first_pair;
  const int pairs = first_pair < order.in_sections && !last && order.section < left ? order.section : left;
  const int in_section = last ? number - by_section : number - first_pair * heavy;
  const int before = in_section / pairs + (last ? heavy : 0);  // how many items of its pair are handed out before it
  return {first_pair + in_section % pairs, tiles_falling ? order.items_of_pair - 1 - before : before};
}

// The same where CTAs add to grad_q in order. Of the first pairs_light_first pairs the kv tile with the highest keys,
// which is the lightest, comes first: a kv tile must follow the one before it, of its pair, by the time of an add and
// the signal's latency, and under a causal mask a heavier one begins with rows that the lighter one does not attend to.
// The pairs after them begin with the heaviest and end with the light ones, which keep CTAs busy at the end.
constexpr ItemOfPair item_in_dq_order(const Order& order, int number, int pairs_light_first) {
  return item_at(order, number, /*tiles_falling=*/number < pairs_light_first * order.items_of_pair);
}
// Whether the numbers that item_in_dq_order() takes from the light end are those of the first pairs_light_first pairs,
// by which the kernel decides in which order the kv tiles of a pair add: they are whole sections. Else kv tiles of a
// pair would come twice and others never, and a CTA would wait for ever for one that never comes.
constexpr bool dq_order_fits(const Order& order, int pairs_light_first) {
  if (pairs_light_first == 0) return true;
  const bool whole_sections = pairs_light_first <= order.in_sections && pairs_light_first % order.section == 0;
  return order.tail == 0 && (whole_sections || pairs_light_first == order.pairs);
}

// The same of [0, items_of_head x heads), of one ragged sequence; the pair is the head.
constexpr ItemOfPair item_in_sequence(int number, int items_of_head, int heads, int section) {
  const int first_head = number / (section * items_of_head) * section;
  const int left = heads - first_head, together = section < left ? section : left;
  const int in_section = number - first_head * items_of_head;
  return {first_head + in_section % together, items_of_head - 1 - in_section / together};
}

// An item of ragged sequences that are handed out together. level: how many tiles its sequence has from the lightest
// one up to the item's. index_in_level: among the items of its level, in which every sequence with that many tiles or
// more has one for each head.
struct Level {
  int level, index_in_level;
};

// Of the item that is handed out as number `number` of [0, tiles of all x heads). most: tiles of the longest.
// above(level): tiles of a higher one, of all sequences; a function, for a warp has a sequence in each lane.
template <class Above>
constexpr Level level_at(int number, int heads, int most, Above above) {
  int lowest = 1, highest = most;  // that it may be
  while (lowest < highest) {
    const int middle = (lowest + highest) / 2;
    if (above(middle) * heads <= number)
      highest = middle;
    else
      lowest = middle + 1;
  }
  return {lowest, number - above(lowest) * heads};
}
constexpr int sequences_together = 32;  // at most: a warp's

// Ragged sequences are handed out by weight class. An item weighs as much as its sequence has rows on the side that it
// visits: keys in the forward pass, query rows in the backward pass. First come the sequences with more than half as
// many rows as the longest one, then those with more than a quarter, then those with more than a sixteenth, then the
// rest. A long one that came last would keep one CTA busy while the others idle.
constexpr int weight_classes = 4;
constexpr int weight_class_of(int rows, int longest) {
  if (rows > longest / 2) return 0;
  if (rows > longest / 4) return 1;
  return rows > longest / 16 ? 2 : 3;
}

}  // namespace froghopper
