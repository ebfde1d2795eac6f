# An IPMI BMC on pyghmi's server: python3 pyghmi.py PORT USER DIR MANUFACTURER GUID, the password on standard input.
# Its power and boot flags are in memory. DIR/requests gets a line for each request of a session, and DIR/faults is read
# before each answer.
import os
import struct
import sys

from pyghmi.ipmi.bmc import Bmc


class Machine(Bmc):
    directory = ""
    power = "off"
    option = {3: [0], 5: [0, 0, 0, 0, 0]}

    def get_power_state(self):
        return self.power

    def power_on(self):
        self.power = "on"

    def power_off(self):
        self.power = "off"

    def power_reset(self):
        # D5h: not supported in the present state.
        return 0xD5 if self.power == "off" else None

    def power_shutdown(self):
        self.power = "off"

    def fault(self, key):
        try:
            with open(os.path.join(self.directory, "faults"), encoding="ascii") as faults:
                return dict(line.split() for line in faults).get(key)
        except FileNotFoundError:
            return None

    def sessionless_data(self, data, sockaddr):
        status = self.fault("session")
        if status and data[4:6] == b"\x06\x10":
            # A refused RMCP+ Open Session Response, IPMI 2.0, 13.18.
            body = bytes([data[16], int(status, 16), 0, 0]) + data[20:24]
            head = b"\x06\x00\xff\x07\x06\x11" + bytes(8) + struct.pack("<H", len(body))
            self.serversocket.sendto(head + body, sockaddr)
        else:
            super().sessionless_data(data, sockaddr)

    def handle_raw_request(self, request, session):
        net, command, data = request["netfn"], request["command"], list(request["data"])
        key = "%02x%02x" % (net, command)
        fault = self.fault(key + bytes(data[:1]).hex()) or self.fault(key)
        with open(os.path.join(self.directory, "requests"), "a", encoding="ascii") as requests:
            requests.write("%s %s\n" % (key, bytes(data).hex()))
        if fault == "lost":
            # It acts, and its answer never arrives.
            session.send_ipmi_response = lambda **_: None
            self.answer(net, command, data, request, session)
            del session.send_ipmi_response
        elif fault:
            session.send_ipmi_response(code=int(fault, 16))
        else:
            self.answer(net, command, data, request, session)

    def answer(self, net, command, data, request, session):
        if (net, command) == (0, 8) and data[0] & 0x7F in self.option:
            self.option[data[0] & 0x7F] = data[1:]
            session.send_ipmi_response(code=0)
        elif (net, command) == (0, 9) and data[0] & 0x7F in self.option:
            # IPMI 2.0, table 28-14: unless bit 3 of option 3 is set, the flags are forgotten after 60 s.
            if int(self.fault("seconds") or 0) > 60 and not self.option[3][0] & 0x08:
                self.option[5] = [0, 0, 0, 0, 0]
            session.send_ipmi_response(code=0, data=[1, data[0]] + self.option[data[0] & 0x7F])
        elif (net, command) == (6, 0x37):
            session.send_ipmi_response(code=0, data=list(bytes.fromhex(self.guid)))
        else:
            super().handle_raw_request(request, session)


port, user, directory, manufacturer, guid = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
machine = Machine({user: sys.stdin.readline().rstrip("\n")}, port=port, address="127.0.0.1")
machine.directory, machine.mfgid, machine.guid = directory, manufacturer, guid
machine.listen()
