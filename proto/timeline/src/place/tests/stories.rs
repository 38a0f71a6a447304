//! Two sessions that saw the same tree and changed it, placed in both orders.

use super::mini::{World, shape, token};
use crate::OverlapRegister;

/// One story: what both saw, what A and B did, and how the drive and the overlaps end when A is placed first and
/// when B is. Overlaps: the content that lost, `name` where only a removal of the name did, `mode`
/// where only owner and mode did.
struct Story {
    title: &'static str,
    both: &'static str,
    a: &'static str,
    b: &'static str,
    a_first: (&'static str, &'static str),
    b_first: (&'static str, &'static str),
}

const STORIES: &[Story] = &[
    Story {
        title: "save x rename",
        both: "create f",
        a: "save f",
        b: "rename f g",
        a_first: ("f=a2#1002 m6, g=a1#1001 m6", ""),
        b_first: ("f=a2#1002 m6, g=a1#1001 m6", "name"),
    },
    Story {
        title: "in-place edit x rename",
        both: "create f",
        a: "write f",
        b: "rename f g",
        a_first: ("g=a2#1001 m6", ""),
        b_first: ("g=a2#1001 m6", ""),
    },
    Story {
        title: "save x chmod",
        both: "create f",
        a: "save f",
        b: "chmod f 1",
        a_first: ("f=a2#1002 m1", ""),
        b_first: ("f=a2#1002 m1", ""),
    },
    Story {
        title: "save x save",
        both: "create f",
        a: "save f",
        b: "save f",
        a_first: ("f=b3#2001 m6", "a2"),
        b_first: ("f=a2#1002 m6", "b3"),
    },
    Story {
        title: "save x edit",
        both: "create f",
        a: "save f",
        b: "write f",
        a_first: ("f=b3#1002 m6", "a2"),
        b_first: ("f=a2#1002 m6", "b3"),
    },
    Story {
        title: "save of one hard link x edit",
        both: "create f; link f h",
        a: "save f",
        b: "write f",
        a_first: ("f=a2#1002 m6, h=b3#1001 m6", ""),
        b_first: ("f=a2#1002 m6, h=b3#1001 m6", ""),
    },
    Story {
        title: "backup save x edit",
        both: "create f",
        a: "emacs f",
        b: "write f",
        a_first: ("f=b3#1002 m6, f~=a1#1001 m6", "a2"),
        b_first: ("f=a2#1002 m6, f~=b3#1001 m6", ""),
    },
    Story {
        title: "swap x edit",
        both: "create f; create g",
        a: "exchange f g",
        b: "write f",
        a_first: ("f=a2#1002 m6, g=b3#1001 m6", ""),
        b_first: ("f=a2#1002 m6, g=b3#1001 m6", ""),
    },
    Story {
        title: "rename away x rm -rf",
        both: "mkdir d; create d/x",
        a: "rename d e",
        b: "rmrf d",
        a_first: ("e=d#1001, e/x=a1#1002 m6", ""),
        b_first: ("", ""),
    },
    Story {
        title: "rename of parent x unlink",
        both: "mkdir d; create d/x; create d/y",
        a: "rename d e",
        b: "unlink d/x",
        a_first: ("e=d#1001, e/x=a1#1002 m6, e/y=a2#1003 m6", ""),
        b_first: ("e=d#1001, e/y=a2#1003 m6", ""),
    },
    Story {
        title: "rm x edit",
        both: "create f",
        a: "unlink f",
        b: "write f",
        a_first: ("f=b2#1001 m6", "name"),
        b_first: ("", "b2"),
    },
    Story {
        title: "rm -rf x create inside",
        both: "mkdir d; create d/x",
        a: "rmrf d",
        b: "create d/z",
        a_first: ("d=d#1001, d/z=b2#2001 m6", ""),
        b_first: ("d=d#1001, d/z=b2#2001 m6", ""),
    },
    Story {
        title: "rm -rf x chmod inside",
        both: "mkdir d; create d/x",
        a: "rmrf d",
        b: "chmod d/x 1",
        a_first: ("", ""),
        b_first: ("", "mode"),
    },
    Story {
        title: "rm -rf x rename of it",
        both: "mkdir d; create d/x",
        a: "rmrf d",
        b: "rename d e",
        a_first: ("", ""),
        b_first: ("e=d#1001, e/x=a1#1002 m6", ""),
    },
    Story {
        title: "rm -rf, mkdir x create inside",
        both: "mkdir d; create d/x",
        a: "rmrf d; mkdir d; create d/n",
        b: "create d/z",
        a_first: ("d=d#1003, d/n=a2#1004 m6, d/z=b3#2001 m6", ""),
        b_first: ("d=d#1001, d/n=a2#1004 m6, d/z=b3#2001 m6", ""),
    },
    Story {
        title: "rm, mkdir x save",
        both: "create f",
        a: "todir f",
        b: "save f",
        a_first: ("f=d#1002, f/a=a2#1003 m6", "b3"),
        b_first: ("f=d#1002, f/a=a2#1003 m6", "b3"),
    },
    Story {
        title: "rm -rf, file x create inside",
        both: "mkdir d; create d/x",
        a: "tofile d",
        b: "create d/z",
        a_first: ("d=a2#1003 m6, d~B=d#1001, d~B/z=b3#2001 m6", ""),
        b_first: ("d=d#1001, d/z=b3#2001 m6", "a2"),
    },
    Story {
        title: "file x empty mkdir",
        both: "",
        a: "create n",
        b: "mkdir n",
        a_first: ("n=d#2001", "a1"),
        b_first: ("n=d#2001", "a1"),
    },
    Story {
        title: "mkdir x mkdir",
        both: "",
        a: "mkdir s; create s/x",
        b: "mkdir s; create s/y",
        a_first: ("s=d#1001, s/x=a1#1002 m6, s/y=b2#2002 m6", ""),
        b_first: ("s=d#2001, s/x=a1#1002 m6, s/y=b2#2002 m6", ""),
    },
    Story {
        title: "create x create",
        both: "",
        a: "create n",
        b: "create n",
        a_first: ("n=b2#2001 m6", "a1"),
        b_first: ("n=a1#1001 m6", "b2"),
    },
    Story {
        title: "rename a b x rename a c",
        both: "create a",
        a: "rename a b",
        b: "rename a c",
        a_first: ("c=a1#1001 m6", ""),
        b_first: ("b=a1#1001 m6", ""),
    },
    Story {
        title: "the same with a hard link h",
        both: "create a; link a h",
        a: "rename a b",
        b: "rename a c",
        a_first: ("b=a1#1001 m6, c=a1#1001 m6, h=a1#1001 m6", ""),
        b_first: ("b=a1#1001 m6, c=a1#1001 m6, h=a1#1001 m6", ""),
    },
    Story {
        title: "x into y x y into x",
        both: "mkdir x; mkdir y",
        a: "rename x y/x",
        b: "rename y x/y",
        a_first: ("y=d#1002, y/x=d#1001", ""),
        b_first: ("x=d#1001, x/y=d#1002", ""),
    },
    Story {
        title: "chain mv b c, mv a b x edit b",
        both: "create a; create b",
        a: "rename b c; rename a b",
        b: "write b",
        a_first: ("b=a1#1001 m6, c=b3#1002 m6", ""),
        b_first: ("b=a1#1001 m6, c=b3#1002 m6", ""),
    },
    Story {
        title: "two dirs renamed to one name",
        both: "mkdir p; create p/1; mkdir q; create q/2",
        a: "rename p u",
        b: "rename q u",
        a_first: ("u=d#1001, u/1=a1#1002 m6, u/2=a2#1004 m6", ""),
        b_first: ("u=d#1003, u/1=a1#1002 m6, u/2=a2#1004 m6", ""),
    },
    Story {
        title: "mv g f over x rm, mkdir f",
        both: "create f; create g",
        a: "todir f",
        b: "rename g f",
        a_first: ("f=d#1003, f/a=a3#1004 m6, g=a2#1002 m6", ""),
        b_first: ("f=d#1003, f/a=a3#1004 m6", "a2"),
    },
];

fn told(world: &World) -> String {
    let mut told = Vec::new();
    for overlap in world.log.iter().flat_map(|(_, placed)| &placed.overlaps) {
        told.push(match (&overlap.register, &overlap.was) {
            (OverlapRegister::Entry(..), _) => "name".to_string(),
            (OverlapRegister::Owner, Some(_)) => "mode".to_string(),
            (_, Some(was)) => token(&was.content.value),
            (register, None) => format!("{register:?} with nothing to restore"),
        });
    }
    told.sort();
    told.join(" ")
}

fn end(story: &Story, order: [usize; 2]) -> (String, String) {
    let mut world = World::new(2);
    world.batch(0, story.both);
    world.quiet();
    world.batch(0, story.a);
    world.batch(1, story.b);
    for session in order {
        world.send(session).unwrap();
    }
    world.quiet();
    (shape(&world.head), told(&world))
}

/// Changes to one path by two sessions end as the rules say, whichever is placed first.
#[test]
fn stories_end_as_the_rules_say() {
    let mut wrong = Vec::new();
    for story in STORIES {
        for (order, want) in [([0, 1], story.a_first), ([1, 0], story.b_first)] {
            let got = end(story, order);
            if (got.0.as_str(), got.1.as_str()) != want {
                wrong.push(format!("{} {order:?}\n  want {want:?}\n  got  {got:?}", story.title));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
