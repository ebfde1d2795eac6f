# An IPMI BMC on pyghmi's server: python3 pyghmi.py PORT USER, the password on standard input. Its state is in memory.
import sys
from pyghmi.ipmi.bmc import Bmc


class Machine(Bmc):
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

    def handle_raw_request(self, request, session):
        net, command, data = request["netfn"], request["command"], list(request["data"])
        if (net, command) == (0, 8) and data[0] & 0x7F in self.option:
            self.option[data[0] & 0x7F] = data[1:]
            return session.send_ipmi_response(code=0)
        if (net, command) == (0, 9) and data[0] & 0x7F in self.option:
            return session.send_ipmi_response(code=0, data=[1, data[0]] + self.option[data[0] & 0x7F])
        if (net, command) == (6, 0x37):
            return session.send_ipmi_response(code=0, data=list(range(1, 17)))
        return super().handle_raw_request(request, session)


port, user, password = int(sys.argv[1]), sys.argv[2], sys.stdin.readline().rstrip("\n")
Machine({user: password}, port=port, address="127.0.0.1").listen()
