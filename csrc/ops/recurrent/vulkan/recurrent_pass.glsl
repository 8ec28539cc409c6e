// What the host says of a pass over states now, of args.pass and args.slots; behind KERNEL.

int certain_rows() {
  StateHead head = args.slots.head;
  return head.certain;
}

uvec2 slot_of(bool is_first) {
  StateHead head = args.slots.head;
  const uvec2 slots = is_first ? uvec2(args.slots.first) : uvec2(args.slots.second);
  return advanced(slots, uint(head.index), 4u * uint(low(args.slots.stride)));
}
Floats written_slot() {
  StateHead head = args.slots.head;
  return Floats(slot_of(head.slot != 0));
}
// Nothing is in it where a text begins.
Floats read_slot() {
  StateHead head = args.slots.head;
  return Floats(slot_of(head.slot == 0));
}

Floats transition_of(Floats slot, int draft) {
  const uvec2 first = advanced(uvec2(slot), uint(low(args.pass.state_floats)), 4u);
  return Floats(advanced(first, uint(draft), 4u * uint(low(args.pass.transition_floats))));
}
// Of the transitions that are applied first, one by number.
Floats accepted_transition(int number) {
  Ints advance = args.pass.advance;
  return transition_of(read_slot(), advance.at[number]);
}
