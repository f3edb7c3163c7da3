"""Secure aggregation: sums of vectors of 64-bit numbers that show nobody's own.

Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", in its
version against a server that does as it likes, on a graph as in Bell et al. 2020, "Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead". Pure functions over bytes and numbers:
nothing here knows Flower, a method or where noise comes from, and no other room is imported.
Arithmetic is modulo 2^64. Five messages a round:

    message     to a node                          from it
    sa_keys     the round                          two fresh X25519 keys, signed with its Ed25519
                                                   key for this run and round
    sa_shares   everybody's keys, t and c          Shamir shares of the seed of its self mask and of
                                                   its mask key, sealed for each neighbour
                                                   (ChaCha20-Poly1305); a commitment to the seed
    sa_input    the question, who sent shares,     answer + noise + self mask + or - one mask per
                the neighbours' shares             neighbour (ChaCha20); a signature on what it
                                                   answered, and among whom
    sa_agree    who answered, and what its         a signature on who answered
                neighbours among them signed
    sa_unmask   t_s signatures                     of every neighbour one share: of its seed if it
                                                   answered, of its mask key if it did not

Every mask is derived (HKDF) from a digest of the run, the round, everybody's keys, t, c, who sent
shares, the length, and all that the question holds: a server that shows two nodes different
questions gets masks that do not cancel.

Claim, against a malicious server with c colluding nodes of n: of an honest node's answer, nothing
but one noised sum over at least t nodes, of which t - c are honest and answered the same question,
or an abort. Why:

1. One set. A node unmasks once, for the set that it signed, with t_s = floor((n + c) / 2) + 1
   signatures on the same digest. 2 t_s > n + c, so of two sets for one roster at least one honest
   node would have signed both. A node is on one roster in a round, and shares sealed under one
   roster cannot be opened under another.
2. One secret. So the honest neighbours of a node all give shares of its seed, or all of its mask
   key. The other secret has at most the colluding neighbours' shares, fewer than the threshold.
3. One question. A node signs what it answered and among whom, with its answer, and no honest
   neighbour agrees to survivors among whom it stands unless that is what the neighbour answered
   itself. So whose self masks can be uncovered, all their masks belong to one question among the
   same nodes, and those they share with honest survivors stay. Signed survivors alone do not see to
   it: a server could tell one node that some nodes sent no shares, and have all others agree that
   the rest of its neighbours did not answer. On a circle of a thousand nodes both sets bear every
   check, the node masked with the rest only, and their keys are given out.
4. Connected. In a small federation everybody shares masks with everybody. In a large one nodes
   stand on a circle, at places drawn from a digest of everybody's keys, and share masks within a
   window on either side (`terms.Graph`): the honest nodes are connected whichever nodes the server
   chose to lose. A degree for random corruption and random loss alone would be about a third of
   ours (112 in place of 294 of 1,000 nodes, a fifth colluding, a fifth lost), and does not bear a
   server that loses the nodes around an arc of the circle. The bound is for nodes that collude
   before the circle is drawn: not for a server that then takes over nodes within the round.
5. Masked. In a connected graph of masks that nobody else knows, the masked answers are uniform
   subject to their sum. No two masks are one stream (`roster.pair_context`).

Not promised: that the sum is right when a colluding node is in it, that a round finishes, anything
about who is on the roster, or about times.
"""
