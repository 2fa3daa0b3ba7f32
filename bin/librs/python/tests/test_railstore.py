"""Tests of the package against a deployment that is up: RAILSTORE_TEST_RECIPE names its
recipe. tests/librs_test.go brings it up; it has kv/big and kv/big2 (8 MiB), kv/bad with a
damaged stripe, and the table vec of 4 floats a row."""

import array
import gc
import os
import signal
import threading
import time
import unittest

import railstore
from railstore import _abi

RECIPE = os.environ.get("RAILSTORE_TEST_RECIPE")
BIG = 8 << 20
OWN = "py%d" % os.getpid()  # a namespace that nothing is in: generations outlive objects


def content(n, seed):
    return bytes(((i * 2654435761 + seed * 97) >> 13) & 255 for i in range(n))


@unittest.skipUnless(RECIPE, "RAILSTORE_TEST_RECIPE is not set: no deployment to test with")
class Case(unittest.TestCase):
    environment = dict(os.environ)

    @classmethod
    def setUpClass(cls):
        cls.s = railstore.Session(RECIPE, environment=cls.environment)

    @classmethod
    def tearDownClass(cls):
        cls.s.close()


class Objects(Case):
    def test_put_and_read(self):
        data = content(100_000, 5)
        report = self.s.put(OWN + "/a", data, if_absent=True)
        self.assertEqual((report["generation"], report["bytes"]), (1, len(data)))
        with self.assertRaises(railstore.ExistsError) as e:
            self.s.put(OWN + "/a", data, if_absent=True)
        self.assertEqual((e.exception.status, e.exception.kind), (1, "exists"))
        for source in (bytearray(data), memoryview(data), memoryview(bytearray(data)), array.array("B", data)):
            self.assertEqual(self.s.put(OWN + "/a", source)["bytes"], len(data))
        buffer = bytearray(b"\xa5" * (len(data) + 10))
        self.assertEqual(self.s.read_into(OWN + "/a", memoryview(buffer)), len(data))
        self.assertEqual(buffer[: len(data)], data)
        self.assertEqual(buffer[len(data) :], b"\xa5" * 10)
        self.assertEqual(self.s.report()["bytes"], len(data))
        part = bytearray(100)
        self.assertEqual(self.s.read_into(OWN + "/a", part, offset=5000, length=100), 100)
        self.assertEqual(part, data[5000:5100])
        self.s.put(OWN + "/empty", b"")
        self.assertEqual(self.s.read_into(OWN + "/empty", bytearray()), 0)
        with self.s.read(OWN + "/empty") as lease:
            self.assertEqual(len(lease.view), 0)

    def test_buffer_is_untouched(self):
        for name, size, error in (
            ("kv/big", BIG - 1, railstore.TooSmallError),
            ("kv/none", BIG, railstore.NotFoundError),
            ("kv/bad", BIG, railstore.IntegrityError),
        ):
            buffer = bytearray(b"\xa5" * size)
            with self.assertRaises(error) as e:
                self.s.read_into(name, buffer)
            self.assertEqual(buffer, b"\xa5" * size)
            self.assertTrue(e.exception.layer and e.exception.op == "read" and e.exception.message)
            self.assertIn(e.exception.kind, str(e.exception))
            if error is railstore.IntegrityError:
                self.assertEqual((e.exception.status, e.exception.kind), (4, "corrupt"))
                self.assertGreaterEqual(e.exception.shard, 0)

    def test_unfit_buffers(self):
        with self.assertRaises(TypeError):
            self.s.read_into("kv/big", bytes(BIG))
        with self.assertRaises(TypeError):
            self.s.read_into("kv/big", memoryview(bytearray(2 * BIG))[::2])
        with self.assertRaises(ValueError):
            self.s.read_into("kv/big\0x", bytearray(BIG))
        with self.assertRaises(ValueError):
            self.s.read_into("kv/big", bytearray(BIG), timeout=0)
        for offset, length in ((-1, 0), (0, -1)):
            with self.assertRaises(ValueError):
                self.s.read("kv/big", offset=offset, length=length)
            with self.assertRaises(ValueError):
                self.s.read_batch([("kv/big", offset, length)])
        buffer = bytearray(BIG)
        self.s.read_into("kv/big", buffer)
        buffer.append(1)  # nothing holds it any more

    def test_lease(self):
        buffer = bytearray(BIG)
        self.s.read_into("kv/big", buffer)
        with self.s.read("kv/big") as lease:
            view = lease.view
            self.assertEqual((len(lease), lease.generation, view.readonly, view.format), (BIG, 1, True, "B"))
            self.assertEqual(view, buffer)
            self.assertEqual(lease.report["bytes"], BIG)
            self.assertTrue(lease.report["exact"])
        for use in (lambda: view[0], lambda: lease.view, lambda: lease.tobytes(), lambda: memoryview(view)):
            with self.assertRaises(ValueError):
                use()
        lease.release()

    def test_lease_that_is_used(self):
        lease = self.s.read("kv/big", offset=1000, length=500)
        part = lease.view[100:200]
        want = bytes(part)
        with self.assertRaises(BufferError):
            lease.release()
        with self.assertRaises(ValueError):
            lease.view
        self.assertEqual(part, want)  # it is there as long as somebody looks
        with self.assertRaises(BufferError):
            lease.release()
        part.release()
        lease.release()
        with self.assertRaises(BufferError):
            with self.s.read("kv/big") as lease:
                kept = lease.view[:10]
        del kept
        with self.assertRaises(KeyError):  # what was raised first is told
            with self.s.read("kv/big") as lease:
                kept = lease.view[:10]
                raise KeyError
        del kept, lease

    def test_lease_that_is_forgotten(self):
        for _ in range(50):  # far more than the session's memory has room for
            lease = self.s.read("kv/big")
        del lease

    @unittest.skipUnless(hasattr(memoryview, "__buffer__"), "classes have buffers from Python 3.12 on")
    def test_lease_is_a_buffer(self):
        with self.s.read("kv/big", length=10) as lease:
            self.assertEqual(bytes(memoryview(lease)), lease.tobytes())

    def test_lease_as_array(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("there is no numpy")
        lease = self.s.read("kv/big")
        a = lease.numpy("uint32")
        self.assertEqual((a.shape, a.flags.writeable), ((BIG // 4,), False))
        with self.assertRaises(BufferError):
            lease.release()
        self.assertEqual(int(a[0]), int(numpy.frombuffer(lease.tobytes() if lease._view else bytes(a.data), dtype="uint32")[0]))
        del a
        lease.release()

    def test_batch(self):
        out = self.s.read_batch(["kv/big", "kv/none", ("kv/big", 10, 20), "not/", "kv/bad"], together=2)
        self.assertIsInstance(out[1], railstore.NotFoundError)
        self.assertIsInstance(out[3], railstore.UsageError)
        self.assertIsInstance(out[4], railstore.IntegrityError)
        self.assertEqual((len(out[0]), len(out[2])), (BIG, 20))
        self.assertEqual(out[0].view[10:30], out[2].view)
        self.assertEqual(out[2].report["bytes"], 20)
        self.assertEqual(self.s.read_batch([]), [])

    def test_catalog(self):
        for i in range(3):
            self.s.put(OWN + "/cat%d" % i, b"x" * i)
        self.assertEqual([o["object"] for o in self.s.list(OWN + "/cat")], ["cat0", "cat1", "cat2"])
        self.assertEqual([o["object"] for o in self.s.list(OWN + "/cat1")], ["cat1"])
        self.assertEqual(self.s.stat(OWN + "/cat2")["size"], 2)
        with self.assertRaises(railstore.ConflictError):
            self.s.remove(OWN + "/cat2", generation=7)
        self.assertEqual(self.s.remove(OWN + "/cat2")["generation"], 1)
        with self.assertRaises(railstore.NotFoundError):
            self.s.stat(OWN + "/cat2")

    def test_plan_and_rails(self):
        plan = self.s.plan("kv/big")
        self.assertEqual([r["planned_bytes"] for r in plan["rails"]], [BIG // 2, BIG // 2])
        self.assertEqual([r["name"] for r in self.s.plan("kv/big", rails=["rail1"])["rails"]], ["rail1"])
        self.assertEqual([r["name"] for r in self.s.rails()], ["rail0", "rail1"])
        d = self.s.describe()
        self.assertEqual((d["deployment"], d["shards"], d["host"]), ("two-rail", [0, 1], "c0"))

    def test_threads(self):
        datas = {OWN + "/thread%d" % i: content(70_000 + i, i) for i in range(2)}
        for name, data in datas.items():
            self.s.put(name, data)
        wrong = []

        def work(name, data):
            buffer = bytearray(len(data))
            for _ in range(20):
                if self.s.read_into(name, buffer) != len(data) or buffer != data:
                    wrong.append(name)

        threads = [threading.Thread(target=work, args=x) for x in datas.items()]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])


class Ends(Case):
    """With room for one big object: a second read waits while a lease has it."""

    environment = dict(os.environ, RS_MR_MAX_STAGING="12MiB")

    def setUp(self):
        self.lease = self.s.read("kv/big")
        self.buffer = bytearray(b"\xa5" * BIG)

    def tearDown(self):
        self.lease.release()
        self.assertEqual(self.buffer, b"\xa5" * BIG)

    def test_cancel(self):
        with railstore.Cancel() as cancel:
            t = threading.Thread(target=cancel.fire)
            t.start()
            for _ in range(2):  # it stays fired
                with self.assertRaises(railstore.CancelledError) as e:
                    self.s.read_into("kv/big2", self.buffer, cancel=cancel)
            t.join()
            self.assertEqual((e.exception.status, e.exception.kind), (130, "cancelled"))

    def test_timeout(self):
        with self.assertRaises(TimeoutError) as e:
            self.s.read_into("kv/big2", self.buffer, timeout=0.05)
        self.assertIsInstance(e.exception, railstore.DeadlineError)
        self.assertEqual(e.exception.status, 3)

    def test_interrupt(self):
        """Ctrl-C ends a read of the main thread."""
        before = signal.getsignal(signal.SIGINT)
        self.assertIs(before, signal.default_int_handler)
        waiting = threading.Event()

        def press():
            while not any(t.name == "railstore call" for t in threading.enumerate()):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            waiting.set()

        t = threading.Thread(target=press)
        t.start()
        with self.assertRaises(KeyboardInterrupt):
            self.s.read_into("kv/big2", self.buffer)
            waiting.wait(10)
        t.join()


class Sessions(Case):
    def test_closed(self):
        s = railstore.Session(RECIPE)
        s.close()
        s.close()
        with self.assertRaises(railstore.ClosedError):
            s.rails()

    def test_closed_with_a_lease(self):
        with self.assertRaises(railstore.LeasedError):
            with railstore.Session(RECIPE) as s:
                lease = s.read("kv/big")
        want = bytearray(BIG)
        self.s.read_into("kv/big", want)
        self.assertEqual(lease.view, want)  # the memory stays
        lease.release()

    def test_errors(self):
        with self.assertRaises(railstore.UsageError) as e:
            railstore.Session(RECIPE, environment={"RS_MR_RAILZ": "1"})
        self.assertIn("RS_MR_RAILZ", e.exception.message)
        with self.assertRaises(railstore.UsageError):
            railstore.Session("/nonexistent.cue")
        with self.assertRaises(railstore.UsageError):
            railstore.Session(environment={})
        with self.assertRaises(railstore.UsageError):
            railstore.Session(RECIPE, host="nobody")
        with railstore.Session(environment={"RS_CONFIG": RECIPE}, rails=["rail1"]) as s:
            self.assertEqual([r["name"] for r in s.rails()], ["rail1"])
        for c in (railstore.FailedError, railstore.UsageError, railstore.NotReadyError, railstore.IntegrityError, railstore.CancelledError):
            self.assertTrue(issubclass(c, railstore.Error))

    def test_environment_is_that_of_now(self):
        os.environ["RS_MR_RAILS"] = "rail1="
        try:
            with railstore.Session(RECIPE) as s:
                self.assertEqual([r["name"] for r in s.rails()], ["rail1"])
        finally:
            del os.environ["RS_MR_RAILS"]

    def test_fork(self):
        pid = os.fork()
        if pid == 0:
            try:
                self.s.rails()
            except railstore.UsageError as e:
                os._exit(0 if e.kind == "forked" else 2)
            os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)


class Tables(Case):
    def test_rows(self):
        with self.assertRaises(railstore.NoTableError):
            self.s.table("none")
        t = self.s.table("vec")
        self.assertEqual((t.dim, t.optimizer), (4, "sgd"))
        keys = [1000, 1001, 1 << 63]
        rows = array.array("f", range(12))
        t.put(keys, rows)
        got, found = t.get([1001, 999_999, 1 << 63])
        self.assertEqual(found, b"\1\0\1")
        self.assertEqual(list(got), [4, 5, 6, 7, 0, 0, 0, 0, 8, 9, 10, 11])
        t.update(array.array("Q", [1000]), [2.0, 2, 2, 2])
        got, _ = t.get(array.array("Q", [1000]))
        self.assertEqual(list(got), [-1, 0, 1, 2])  # a learning rate of 0.5
        with self.assertRaises(railstore.ShapeError):
            t.put(keys, rows[:11])
        with self.assertRaises(TypeError):
            t.put(array.array("d", [1]), rows)
        with self.assertRaises(TypeError):
            t.get_into([1], array.array("d", range(4)))
        self.assertEqual(t.get([]), (array.array("f"), bytearray()))


class ABI(unittest.TestCase):
    def test_sizes(self):
        sizes = {c.__name__: _abi.ctypes.sizeof(c) for c in _abi.STRUCTS}
        self.assertEqual(
            sizes,
            {
                "rs_error": 80,
                "rs_session_options": 56,
                "rs_call_options": 24,
                "rs_read_options": 56,
                "rs_put_options": 64,
                "rs_leased": 40,
                "rs_read_item": 32,
            },
        )

    def test_version(self):
        self.assertGreaterEqual(railstore.load().rs_abi_version(), railstore.ABI_VERSION)
        self.assertTrue(railstore.version())


if __name__ == "__main__":
    unittest.main()
